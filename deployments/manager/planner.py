"""Plans a load: a pure function of the disk, the configuration and the served versions."""

from collections.abc import Iterable
from typing import NamedTuple

from app.routing.table import NO_VERSION, ModelState, VersionEntry


class LoadPlan(NamedTuple):
    """The actions of a load.

    Attributes:
        start: versions to start.
        keep: versions that stay as they are.
        retire: entries to take out of service after the start.
        update: versions whose replicas stay and change their instances.
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
        wanted: versions that the policy selects.
        served: the present entries of the model.
        unchanged: READY versions whose files and configuration are the loaded ones.
        updatable: versions of which only the instances would change.
    """
    wanted, unchanged, served = set(wanted), set(unchanged), tuple(served)
    ready = {entry.version for entry in served if entry.state is ModelState.READY}
    keep = wanted & unchanged & ready
    update = (wanted & set(updatable) & ready) - keep
    retire = tuple(entry for entry in served if entry.version not in wanted and entry.version != NO_VERSION)
    start = wanted - keep - update
    return LoadPlan(tuple(sorted(start)), tuple(sorted(keep)), retire, tuple(sorted(update)))
