"""The repository index: name, version, state and reason of all models, as Triton lists them."""

from collections.abc import Iterable, Iterator, Mapping

from app.core.rollout.history import RejectedVersion, rejection_text
from app.routing.table import NO_VERSION, ModelState, VersionEntry
from deployments.model_store.layout import ModelEntry


def index_rows(
    entries: Iterable[VersionEntry],
    on_disk: Mapping[str, ModelEntry],
    rejected: Mapping[str, Iterable[RejectedVersion]] = {},
) -> list[tuple[str, str, str, str]]:
    """Return name, version, state and reason of every version, and names of models that were never loaded.

    Of `rejected` versions those that are on the disk, with the reason why they get no requests.
    """
    left_out = dict(_left_out(on_disk, rejected))
    rows: list[tuple[str, str, str, str]] = []
    known = set()
    for entry in entries:
        known.add(entry.name)
        absent = entry.version == NO_VERSION or entry.unloaded_by_request
        refused = on_disk[entry.name].reason if absent and entry.name in on_disk else ""
        unread = entry.state is ModelState.UNKNOWN
        state = _state_unloaded(refused) if unread else entry.state.value
        number = "" if entry.version == NO_VERSION else str(entry.version)
        why = left_out.pop((entry.name, entry.version), "")
        reason = refused or (why if entry.unloaded_by_request and why else _reason_shown(entry))
        rows.append((entry.name, number, state, reason))
    unavailable = ModelState.UNAVAILABLE.value
    rows += ((name, str(version), unavailable, why) for (name, version), why in left_out.items())
    known |= {name for name, _ in left_out}
    never = (model for name, model in on_disk.items() if name not in known)
    rows += ((model.identifier, "", _state_unloaded(model.reason), model.reason) for model in never)
    return sorted(rows)


def _left_out(
    on_disk: Mapping[str, ModelEntry], rejected: Mapping[str, Iterable[RejectedVersion]]
) -> Iterator[tuple[tuple[str, int], str]]:
    """Yield rejected versions that are on the disk, and why they were rejected."""
    for name in on_disk.keys() & rejected.keys():
        for each in rejected[name]:
            if each.version in on_disk[name].versions:
                yield (name, each.version), rejection_text(on_disk[name].name, each)


def _reason_shown(entry: VersionEntry) -> str:
    """Return why a version is in its state; of one that is scaled, its replicas."""
    if entry.reason or entry.scale is None or entry.state is not ModelState.READY:
        return entry.reason
    return str(entry.scale)


def _state_unloaded(refused: str) -> str:
    """Return the state of a model without versions: none, unless its directory is refused."""
    return ModelState.UNAVAILABLE.value if refused else ""
