"""The models of the page: the repository's index beside what is served. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from tritonclient.grpc import service_pb2 as pb

from app.core.config.model_config import TensorSpec
from app.core.identifiers import name_of
from app.ingress.rest.home.first_request import request_of
from app.ingress.rest.home.remedies import explained
from app.routing.table import UNLOADED, ModelState, VersionEntry

_WORDS: Final[Mapping[str, tuple[str, str]]] = {
    ModelState.READY: ("Ready", "good"),
    ModelState.LOADING: ("Loading", "busy"),
    ModelState.UNLOADING: ("Unloading", "busy"),
    ModelState.UNAVAILABLE: ("Not ready", "bad"),
    ModelState.UNKNOWN: ("Unreadable", "bad"),
    "": ("Not loaded", "off"),
}
_OTHER: Final = ("Unknown", "off")
_ORDER: Final = ("bad", "busy", "good", "off")


class Tensor(NamedTuple):
    """A row of a model's inputs or outputs."""

    name: str
    datatype: str
    shape: str
    optional: bool


class Model(NamedTuple):
    """A version of a model as the page shows it.

    Attributes:
        name, version: version is "" for a model without one.
        state: in words.
        look: one of "good", "busy", "bad", "off".
        kind: its backend or platform, and what is special about its requests.
        reason, remedy: why it is in its state, and what to do; "" for nothing.
        inputs, outputs: as its metadata has them.
        request: a line of shell that asks it; "" for none.
    """

    name: str
    version: str
    state: str
    look: str
    kind: str
    reason: str
    remedy: str
    inputs: Sequence[Tensor] = ()
    outputs: Sequence[Tensor] = ()
    request: str = ""


class Asking(NamedTuple):
    """How the commands of the page ask; see `first_request`."""

    curl: str
    url: str


def shown_models(
    index: Iterable[pb.RepositoryIndexResponse.ModelIndex],
    served: Iterable[VersionEntry],
    asking: Asking | None,
) -> list[Model]:
    """Return the models of the index, what needs a person first.

    Args:
        index: of the repository.
        served: the versions that are ready.
        asking: how their commands ask; None leaves out inputs, outputs and commands.
    """
    rows = list(index)
    entries = {(entry.name, str(entry.version)): entry for entry in served}
    ready = Counter(row.name for row in rows if row.state == ModelState.READY)
    found = [
        _model(row, entries.get((row.name, row.version)), asking, numbered=ready[row.name] > 1)
        for row in rows
    ]
    return sorted(
        found, key=lambda model: (_ORDER.index(model.look), model.name, len(model.version), model.version)
    )


def _model(
    row: pb.RepositoryIndexResponse.ModelIndex,
    entry: VersionEntry | None,
    asking: Asking | None,
    numbered: bool,
) -> Model:
    state, look = worded(row.state, row.reason, idle=entry is not None and entry.idle)
    reason, remedy = explained(row.state, row.reason)
    model = Model(name_of(row.name), row.version, state, look, "", reason, remedy)
    if entry is None or asking is None or row.state != ModelState.READY:
        return model
    return model._replace(
        kind=_kind(entry),
        inputs=_tensors(entry.inputs.values()),
        outputs=_tensors(entry.outputs.values()),
        request=request_of(entry, asking.curl, asking.url, numbered),
    )


def worded(state: str, reason: str, idle: bool) -> tuple[str, str]:
    """Return the word for the state of a version, and its look; see `Model`."""
    if idle:
        return "Idle", "off"
    unloaded = state == ModelState.UNAVAILABLE and reason == UNLOADED
    return _WORDS[""] if unloaded else _WORDS.get(state, _OTHER)


def _tensors(specs: Iterable[TensorSpec]) -> list[Tensor]:
    return [Tensor(spec.name, spec.datatype, _shape(spec.shape), spec.optional) for spec in specs]


def _shape(sizes: Iterable[int]) -> str:
    return " × ".join("any" if size < 0 else str(size) for size in sizes) or "one value"


def _kind(entry: VersionEntry) -> str:
    config = entry.model_config
    words = ["ensemble" if entry.ensemble else config.backend or config.platform]
    if entry.decoupled:
        words.append("streams answers")
    if entry.keeps_sequences:
        words.append("keeps sequences")
    if entry.batched:
        words.append(f"batches up to {config.max_batch_size}")
    return " · ".join(filter(None, words))
