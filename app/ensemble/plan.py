"""The steps of a graph with the versions that answer them, resolved once for a routing table.

Most ensembles need no more: every request runs each step once, as soon as the steps have answered whose
tensors it reads. What else has to be decided in a request, `app/ensemble/execution.py` decides.
"""

from typing import NamedTuple, Protocol

from app.core.config.model_config import TensorSpec
from app.core.errors import InferError
from app.core.tensors import Tensor
from app.ensemble.graph import EnsembleGraph, Step
from app.ensemble.shapes import renamed
from app.routing.table import RoutingTable, VersionEntry


class Models(Protocol):
    """The router, as an ensemble uses it for its steps."""

    @property
    def table(self) -> RoutingTable: ...

    def resolve(self, name: str, version: str = "") -> VersionEntry: ...

    def available(self, entry: VersionEntry) -> bool: ...


class Place(NamedTuple):
    """An ensemble tensor as a step reads it, or as the ensemble returns it.

    Attributes:
        number: place of the tensor in the values of a request.
        name: what it is called there.
        spec: what the model, or the ensemble, declares; None for an input that the model does not have.
        rank: dimensions that need no change; -1 where every shape may.
    """

    number: int
    name: str
    spec: TensorSpec | None
    rank: int

    def fitted(self, tensor: Tensor) -> Tensor:
        """Return a tensor under this name, in the shape that is expected here."""
        if len(tensor.shape) != self.rank:
            return renamed(tensor, self.name, self.spec)
        if tensor.name == self.name:
            return tensor
        return Tensor(self.name, tensor.datatype, tensor.shape, tensor.data)


class PlannedStep(NamedTuple):
    """A step and the version that answers it.

    Attributes:
        number: place in the plan.
        step: the step.
        entry: the version.
        inputs: the tensors it reads.
        outputs: place of each tensor that it writes, by the model's output.
        after: how many other steps have to answer before it.
        before: those that read what it writes.
    """

    number: int
    step: Step
    entry: VersionEntry
    inputs: tuple[Place, ...]
    outputs: dict[str, int]
    after: int
    before: tuple[int, ...]


class Plan(NamedTuple):
    """The steps of a graph, as one ensemble has it.

    Attributes:
        steps: these steps.
        inputs: place of each input of the ensemble.
        outputs: those of its outputs.
        size: places of a request.
        missing: of each step, how many others have to answer before it.
        chain: what its steps are part of, in a request that is part of no other.
    """

    steps: tuple[PlannedStep, ...]
    inputs: dict[str, int]
    outputs: tuple[Place, ...]
    size: int
    missing: list[int]
    chain: tuple[str, ...]


def plan_of(entry: VersionEntry, graph: EnsembleGraph, models: Models) -> Plan | None:
    """Return the plan of a graph by the current routing table; None where a request needs more."""
    limited = entry.model_config.ensemble_scheduling.max_inflight_requests
    if entry.decoupled or limited or not graph.steps:
        return None
    try:
        entries = [models.resolve(step.model, step.version) for step in graph.steps]
    except InferError:  # each request says why
        return None
    if any(step.when is not None for step in graph.steps) or not all(map(_is_plain, entries)):
        return None
    places = {name: number for number, name in enumerate(dict.fromkeys([*entry.inputs, *graph.producers]))}
    steps = _steps(graph, entries, places)
    outputs = tuple(_output(places[name], entry.outputs[name]) for name in graph.outputs)
    inputs = {name: places[name] for name in entry.inputs}
    return Plan(steps, inputs, outputs, len(places), [step.after for step in steps], (entry.name,))


def _steps(
    graph: EnsembleGraph, entries: list[VersionEntry], places: dict[str, int]
) -> tuple[PlannedStep, ...]:
    numbers = {step: number for number, step in enumerate(step.number for step in graph.steps)}
    sources = [
        {numbers[graph.producers[name].number] for name in step.reads if name in graph.producers}
        for step in graph.steps
    ]
    return tuple(
        PlannedStep(
            number,
            step,
            entry,
            tuple(_input(places[tensor], name, entry.inputs.get(name)) for name, tensor in step.inputs),
            {name: places[tensor] for name, tensor in step.outputs.items()},
            len(sources[number]),
            tuple(reader for reader, others in enumerate(sources) if number in others),
        )
        for number, (step, entry) in enumerate(zip(graph.steps, entries, strict=True))
    )


def _is_plain(entry: VersionEntry) -> bool:
    """Return whether a version gives each request one response, and is the only one to answer it."""
    return not entry.decoupled and not entry.ensemble and entry.split is None


def _input(number: int, name: str, spec: TensorSpec | None) -> Place:
    return Place(number, name, spec, -1 if spec is None else len(spec.shape))


def _output(number: int, spec: TensorSpec) -> Place:
    return Place(number, spec.name, spec, len(spec.shape) if spec.reshape is None else -1)
