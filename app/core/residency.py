"""Reports of replicas on their use of memory, and of the manager on models in memory."""

from typing import Final

import msgspec

USE: Final = "use"
"""The control verb by which an ingress reads the `ReplicaUse` of a replica."""


class ReplicaUse(msgspec.Struct, frozen=True, array_like=True):
    """The memory of a replica, and the time of its last use.

    Attributes:
        replica: identifies its process.
        nbytes: memory of its processes (proportional set size) and of GPUs.
        idle_s: seconds since its last execution or since its load; 0 while requests are in flight.
        sequences: sequences that have not ended.
    """

    replica: str
    nbytes: int
    idle_s: float
    sequences: int = 0


UseReport = list[tuple[str, ReplicaUse]]
"""The replicas of a node, each with its Serve application."""


class ResidencyReport(msgspec.Struct, frozen=True, array_like=True):
    """Models in memory, and those that came and went.

    Attributes:
        budget: bytes for all models together.
        nbytes: bytes that they use, and that loads are expected to.
        models: models with a replica.
        registered: models that are ready to be loaded, and those.
        demanded: loads that requests asked for.
        failed: those of them that failed.
        evicted: models that were unloaded for others.
        evicted_age_s: seconds from the last use to the eviction, of the last model evicted; None before that.
    """

    budget: int = 0
    nbytes: int = 0
    models: int = 0
    registered: int = 0
    demanded: int = 0
    failed: int = 0
    evicted: int = 0
    evicted_age_s: float | None = None
