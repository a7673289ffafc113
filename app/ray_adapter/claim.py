"""The claim of a server on a cluster's Serve, where a second one would share its names and end it."""

from typing import Any, Final

import msgspec

_KEY: Final = b"server"
_NAMESPACE: Final = b"nereid"


class Claim(msgspec.Struct, frozen=True):
    """The server of a cluster: its Ray job, and the name that people know it by."""

    job: str
    host: str
    pid: int

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def claim_cluster(mine: Claim) -> Claim | None:
    """Claim the cluster that this process has joined; return a living server's claim if there is one.

    A server that was killed leaves its claim behind, which then counts no longer.
    """
    from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put

    content = msgspec.json.encode(mine)
    # `_internal_kv_put` of Ray 2.60 returns whether there was a value already.
    if not _internal_kv_put(_KEY, content, overwrite=False, namespace=_NAMESPACE):
        return None
    earlier = msgspec.json.decode(_internal_kv_get(_KEY, namespace=_NAMESPACE), type=Claim)
    if earlier.job != mine.job and _runs(earlier.job):
        return earlier
    _internal_kv_put(_KEY, content, overwrite=True, namespace=_NAMESPACE)
    return None


def release_cluster() -> None:
    """Give up this process's claim."""
    from ray.experimental.internal_kv import _internal_kv_del

    _internal_kv_del(_KEY, namespace=_NAMESPACE)


def _runs(job: str) -> bool:
    """Return whether the driver of a job is connected (`ray._private.state` of Ray 2.60)."""
    import ray._private.state as ray_state

    jobs: Any = vars(ray_state)["jobs"]
    return any(each["JobID"] == job and not each["IsDead"] for each in jobs())
