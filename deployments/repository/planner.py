"""What a load has to do: a pure function of the disk, the configuration and what is served now."""

from collections.abc import Iterable
from typing import NamedTuple

from app.routing.table import NO_VERSION, ModelState, VersionEntry


class LoadPlan(NamedTuple):
    """Versions to start, versions that stay as they are, and entries to take out of service afterwards."""

    start: tuple[int, ...]
    keep: tuple[int, ...]
    retire: tuple[VersionEntry, ...]


def plan_load(wanted: Iterable[int], served: Iterable[VersionEntry], unchanged: Iterable[int]) -> LoadPlan:
    """Plan the (re)load of a model.

    Args:
        wanted: versions the policy asks for.
        served: the model's entries now.
        unchanged: versions at READY state whose files and configuration are as they were loaded.
    """
    wanted, unchanged, served = set(wanted), set(unchanged), tuple(served)
    ready = {entry.version for entry in served if entry.state is ModelState.READY}
    keep = wanted & unchanged & ready
    retire = tuple(entry for entry in served if entry.version not in wanted and entry.version != NO_VERSION)
    return LoadPlan(tuple(sorted(wanted - keep)), tuple(sorted(keep)), retire)
