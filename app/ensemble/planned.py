"""A request of an ensemble that follows a plan: a step is sent when those before it have answered."""

import logging
from collections.abc import Collection, Iterable
from functools import partial

import msgspec

from app.core.inference import Call, Sink
from app.core.tensors import InferRequest, InferResponse, Tensor
from app.ensemble.call import EnsembleCall, check_circular
from app.ensemble.compiled import CompiledEnsemble
from app.ensemble.plan import Plan, PlannedStep
from app.ensemble.shapes import as_output, reshaped

logger = logging.getLogger(__name__)


class PlannedExecution(EnsembleCall):
    """Keeps the tensors of a request in the places of its plan; None is one left out, or not known yet."""

    __slots__ = ("_calls", "_chain", "_left", "_missing", "_plan", "_values")

    def __init__(self, ensemble: CompiledEnsemble, plan: Plan, request: InferRequest, sink: Sink) -> None:
        super().__init__(ensemble, request, sink)
        self._plan = plan
        self._values: list[Tensor | None] = [None] * plan.size
        self._missing = plan.missing.copy()
        self._left = len(plan.steps)
        self._calls: dict[int, Call] = {}
        self._chain = (*request.chain, *plan.chain) if request.chain else plan.chain

    @property
    def _in_flight(self) -> Iterable[Call]:
        return self._calls.values()

    def _release(self) -> Collection[Call]:
        calls, self._calls = self._calls.values(), {}
        self._values = []
        return calls

    def _run(self) -> None:
        plan, specs = self._plan, self._entry.inputs
        for tensor in self.request.inputs:
            spec = specs[tensor.name]
            self._values[plan.inputs[tensor.name]] = (
                tensor if spec.reshape is None else reshaped(tensor, spec)
            )
        for step in plan.steps:
            if not step.after:
                self._send(step)

    def _send(self, step: PlannedStep) -> None:
        inputs: tuple[Tensor, ...] = ()
        for place in step.inputs:
            tensor = self._values[place.number]
            if tensor is not None:  # one that was left out is refused by the model itself, with its own text
                inputs += (place.fitted(tensor),)
        chain, entry = self._chain, step.entry
        if len(chain) > 1:  # part of a call of a model, which this may be a step of
            check_circular(entry, chain)
        request = msgspec.structs.replace(
            self.request,
            model_name=step.step.model,
            model_version=step.step.version,
            inputs=inputs,
            outputs=step.step.requested,
            chain=chain,
            rollout=None,
        )
        call = self._calls[step.number] = entry.target.submit(request, partial(self._receive, step))
        if self.advised:
            call.cancel(advice=True)

    def _receive(self, step: PlannedStep, response: InferResponse) -> None:
        if self.ended or self._calls.pop(step.number, None) is None:
            return
        if response.failure is not None:
            self._fail(response.failure)
            return
        values, outputs = self._values, step.outputs
        for tensor in response.outputs:
            place = outputs.get(tensor.name)
            if place is not None:
                values[place] = tensor
        self._left -= 1
        try:
            if not self._left:
                self._finish(self._outputs())
            for number in step.before:
                self._missing[number] -= 1
                if not self._missing[number]:
                    self._send(self._plan.steps[number])
        except Exception as error:
            self._fail_by(error)

    def _outputs(self) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = ()
        for place in self._plan.outputs:
            tensor = self._values[place.number]
            if tensor is None:
                logger.debug("Composing models did not output tensor %s", place.name)
            elif place.rank < 0 and place.spec is not None:
                found += (as_output(tensor, place.spec),)
            else:
                found += (place.fitted(tensor),)
        return found
