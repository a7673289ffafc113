"""The Ray cluster under a server: one that runs already, or one that is started for this machine alone."""

import os
import re
import socket
import time
from pathlib import Path
from typing import Any, Final

from app.ray_token import require_token

_ANSWER_S: Final = 30.0
_TRY_S: Final = 5.0
_ADDRESS: Final = re.compile(r"\[?(?P<host>[^\[\]/]+?)\]?:(?P<port>\d{1,5})")
_PATIENCE: Final = {"RAY_raylet_start_wait_time_s": "300", "RAY_gcs_server_port_wait_time_s": "120"}
"""Ray gives its own processes 30 and 15 seconds to start, which on a busy machine is too little."""
_LOOPBACK: Final = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Makes 127.0.0.1 the address of the node, on which Ray's processes then listen (`get_node_ip_address` in its
services.py): some have pages that ask for no token. By default they listen on every interface on Linux."""


class ClusterError(Exception):
    """There is no cluster to serve on; the text is one line."""


def join_or_start(loopback: bool = True, import_from_cwd: bool = True, **options: Any) -> None:
    """Join the cluster that RAY_ADDRESS or `ray start` names; without either, start one. Imports Ray.

    Args:
        loopback: let a cluster that is started be reached from this machine only.
        import_from_cwd: let workers import from the directory of this process, which is Ray's default.
        options: of `ray.init`.

    Raises:
        ClusterError: why that is not possible.
    """
    require_token()
    # Ray runs its workers at niceness 15, behind anything else on the machine: not what a server wants.
    os.environ.setdefault("RAY_worker_niceness", "0")
    address = os.environ.get("RAY_ADDRESS", "")
    if address:
        await_answer(address)
    elif not _started_file().exists():
        for name, value in (_PATIENCE | (_LOOPBACK if loopback else {})).items():
            os.environ.setdefault(name, value)
    import ray
    from ray.job_config import JobConfig

    if not import_from_cwd:
        # Ray adds the directory of every driver but that of a Ray Client (`ray._private.worker.connect`).
        options["job_config"] = JobConfig(_client_job=True)
    try:
        ray.init(**options)
    except Exception as error:
        what = f"join the Ray cluster at '{address}'" if address else "start Ray"
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ClusterError(f"error: creating server: Unavailable - cannot {what}: {reason}") from error


def await_answer(address: str, seconds: float = _ANSWER_S) -> None:
    """Wait until somebody listens at `host:port`; Ray itself would try for a quarter of an hour.

    Raises:
        ClusterError: nobody does.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None:  # "auto", or something that Ray will refuse
        return
    until = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((match["host"], int(match["port"])), _TRY_S).close()
            return
        except (OSError, OverflowError) as error:
            if time.monotonic() >= until:
                text = f"error: creating server: Unavailable - nobody answers at RAY_ADDRESS '{address}'"
                raise ClusterError(f"{text}: {error}") from error
        time.sleep(min(1.0, seconds))


def _started_file() -> Path:
    """Where `ray start` leaves the address of its cluster, until `ray stop`."""
    directory = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    return Path(directory, "ray", "ray_current_cluster")
