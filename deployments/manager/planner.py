"""What a load has to do: a pure function of the disk, the configuration and what is served now."""

from collections.abc import Iterable
from typing import NamedTuple

from app.routing.table import NO_VERSION, ModelState, VersionEntry


class LoadPlan(NamedTuple):
    """Versions to start, versions that stay as they are, and entries to take out of service afterwards.

    `update` are versions whose replicas stay and change their instances.
    """

    start: tuple[int, ...]
    keep: tuple[int, ...]
    retire: tuple[VersionEntry, ...]
    update: tuple[int, ...] = ()


def plan_load(
    wanted: Iterable[int],
    served: Iterable[VersionEntry],
    unchanged: Iterable[int],
    updatable: Iterable[int] = (),
) -> LoadPlan:
    """Plan the (re)load of a model.

    Args:
        wanted: versions the policy asks for.
        served: the model's entries now.
        unchanged: versions at READY state whose files and configuration are as they were loaded.
        updatable: versions of which nothing but the instances would change.
    """
    wanted, unchanged, served = set(wanted), set(unchanged), tuple(served)
    ready = {entry.version for entry in served if entry.state is ModelState.READY}
    keep = wanted & unchanged & ready
    update = (wanted & set(updatable) & ready) - keep
    retire = tuple(entry for entry in served if entry.version not in wanted and entry.version != NO_VERSION)
    start = wanted - keep - update
    return LoadPlan(tuple(sorted(start)), tuple(sorted(keep)), retire, tuple(sorted(update)))
