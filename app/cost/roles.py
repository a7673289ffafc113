"""What a process of a server is for, by its title or command line. Pure."""

import re
from typing import Final, NamedTuple

SERVER: Final = "server"
"""The program that starts a server, and what is not told apart."""
INGRESS: Final = "ingress"
OWN: Final = "nereid: "
"""How titles begin that the server gives."""
_MODEL: Final = re.compile(
    r"(?:ray::ServeReplica:|nereid: model )(?P<application>.+?:\d+(?:~[0-9a-f]+)?(?:@\d+)?)"
)
_INSTANCE: Final = re.compile(r"/worker_main\.py \d+ (?P<application>.+)_\d+_\d+")
"""The process of an instance; where there is no replica above it, it tells the model and not the version."""
_ROLES: Final = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"ray::ServeReplica:\S+?:ingress\b", INGRESS),
        (r"ray::ServeReplica:\S+?:repository-manager\b", "manager"),
        (r"ray::(?:ServeController|ProxyActor|HAProxyManager)|(?:^|/)haproxy\b", "serve"),
        (r"gcs_server", "gcs"),
        (r"raylet/raylet", "raylet"),
        (r"^nereid: fork server", "fork server"),
        (r"ray::|ray-dashboard|ray[./](?:dashboard|_private|autoscaler|core)\b", "ray"),
    )
)
_SETTLED: Final = frozenset({INGRESS, "manager", "serve", "gcs", "raylet"})


class Role(NamedTuple):
    """What a process is for.

    Attributes:
        application: the Serve application of a model's process; "" for any other.
        kind: of process, for one that is no model's.
    """

    application: str = ""
    kind: str = SERVER

    @property
    def settled(self) -> bool:
        """Whether it stays so: other titles change once a process is given something to do."""
        return bool(self.application) or self.kind in _SETTLED

    @property
    def group(self) -> str:
        """A name that no other role has."""
        return f"model {self.application}" if self.application else self.kind

    @classmethod
    def of_group(cls, group: str) -> "Role":
        """Return the role with a name."""
        kind, space, application = group.partition(" ")
        return cls(application) if kind == "model" and space else cls(kind=group)


def role_of(title: str) -> Role | None:
    """Return what a title says; None if it says nothing: then the process is its parent's."""
    if found := _MODEL.match(title) or _INSTANCE.search(title):
        return Role(found["application"])
    return next((Role(kind=kind) for pattern, kind in _ROLES if pattern.search(title)), None)
