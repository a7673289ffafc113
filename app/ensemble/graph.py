"""The graph of an ensemble's steps, read from its configuration once."""

from collections.abc import Collection
from functools import cached_property
from typing import NamedTuple

from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.ensemble import Condition, conditions
from app.core.identifiers import identifier
from app.core.tensors import RequestedOutput


class Step(NamedTuple):
    """One call of a model.

    Attributes:
        number: place in `ensemble_scheduling`.
        model: identifier of the model to call.
        version: "" when the model's version policy decides.
        inputs: pairs of the model's input and the ensemble tensor it is fed from.
        reads: ensemble tensors that must be known before the step can start.
        outputs: ensemble tensor by the model's output.
        requested: the same outputs, as a request names them.
        when: condition on which the step runs; None when it always does.
    """

    number: int
    model: str
    version: str
    inputs: tuple[tuple[str, str], ...]
    reads: tuple[str, ...]
    outputs: dict[str, str]
    requested: tuple[RequestedOutput, ...]
    when: Condition | None = None


class EnsembleGraph:
    """The steps that lead to some outputs."""

    def __init__(self, name: str, steps: tuple[Step, ...], outputs: tuple[str, ...]) -> None:
        self.name = name
        self.steps = steps
        self.outputs = outputs
        self.consumers: dict[str, tuple[Step, ...]] = {}
        for step in steps:
            for tensor in dict.fromkeys(step.reads):
                self.consumers[tensor] = (*self.consumers.get(tensor, ()), step)

    @classmethod
    def from_config(cls, config: mc.ModelConfig) -> "EnsembleGraph":
        """Make the whole graph of a validated configuration."""
        when = conditions(config)
        scheduling = config.ensemble_scheduling
        steps = tuple(_step(number, step, when.get(number)) for number, step in enumerate(scheduling.step))
        outputs = tuple(output.name for output in config.output)
        return cls(config.name, steps, outputs)

    @cached_property
    def producers(self) -> dict[str, Step]:
        """The step that writes each ensemble tensor; inputs of the ensemble have none."""
        return {tensor: step for step in self.steps for tensor in step.outputs.values()}

    def pruned(self, wanted: Collection[str]) -> "EnsembleGraph":
        """Return the graph for some of the outputs, without the steps that lead to none of them."""
        outputs = tuple(output for output in self.outputs if output in wanted)
        needed: dict[int, Step] = {}
        pending = list(outputs)
        while pending:
            step = self.producers.get(pending.pop())
            if step is not None and step.number not in needed:
                needed[step.number] = step
                pending.extend(step.reads)
        return EnsembleGraph(self.name, tuple(step for _, step in sorted(needed.items())), outputs)


def _step(number: int, step: mc.ModelEnsembling.Step, when: Condition | None) -> Step:
    inputs = tuple(sorted(step.input_map.items()))
    outputs = dict(sorted(step.output_map.items()))
    reads = tuple(tensor for _, tensor in inputs)
    return Step(
        number=number,
        model=identifier(step.model_namespace, step.model_name),
        version=str(step.model_version) if step.model_version > 0 else "",
        inputs=inputs,
        reads=reads if when is None else (*reads, when.tensor),
        outputs=outputs,
        requested=tuple(RequestedOutput(name) for name in outputs),
        when=when,
    )
