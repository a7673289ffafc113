"""One request of an ensemble under way."""

import asyncio
import time
from collections import Counter, deque
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from app.core.config.model_config import WILDCARD, TensorSpec
from app.core.errors import ErrorCode, Failure, FailureReason, InferError, invalid_arg, unavailable
from app.core.inference import Call, Sink
from app.core.tensors import InferRequest, InferResponse, Parameters, Tensor, Timestamps
from app.core.traced import CallUnderWay, TracedCalls
from app.ensemble.graph import Step
from app.ensemble.scope import TensorScope
from app.routing.table import VersionEntry
from app.transport.channel.client import no_sink

if TYPE_CHECKING:
    from app.ensemble.runner import Ensemble, Models

MAX_SCOPES: Final = 65536
"""Responses of decoupled steps within one request that have not been answered yet."""

DEADLOCK: Final = (
    "unexpected deadlock, at least one output is not set while no more ensemble steps can be made"
)


class EnsembleExecution:
    """Starts each step when all it reads is there, and answers when all outputs are.

    A failing step ends the request: what still runs is cancelled.
    """

    def __init__(self, ensemble: "Ensemble", models: "Models", request: InferRequest, sink: Sink) -> None:
        self._ensemble = ensemble
        self._entry = ensemble.entry
        self._models = models
        self._request = request
        self._sink = sink
        self._plan = ensemble.plan(request)
        self._root = TensorScope()
        self._ready: deque[tuple[Step, TensorScope, VersionEntry]] = deque()
        self._calls: dict[int, Call] = {}
        self._under_way: Counter[int] = Counter()
        self._next_call = 0
        self._rows = 1
        self._scopes = 0
        self._starting = True
        self._done = False
        self._responded = False
        self._started_ns = time.monotonic_ns()
        # Of a traced request: its steps under way, and those that ended.
        self._noted: dict[int, CallUnderWay] = {}
        self._traced = TracedCalls() if request.trace else None

    def start(self) -> None:
        """Begin; what can be answered at once is answered when the caller has returned to the loop."""
        try:
            self._rows = self._ensemble.checker.check(self._request)
        except InferError as error:
            self._fail(error.failure, prefixed=False)
            return
        try:
            self._begin()
        except InferError as error:
            self._fail(error.failure)
        self._starting = False

    def cancel(self) -> None:
        """Cancel the steps under way; the sink gets a CANCELLED error, unless it had a final response."""
        self._fail(Failure(ErrorCode.CANCELLED, "", FailureReason.CANCELED), prefixed=False)

    def _begin(self) -> None:
        entry = self._entry
        if entry.name in self._request.chain:
            raise _circular((*self._request.chain, entry.name))
        given = {tensor.name: tensor for tensor in self._request.inputs}
        self._settle(self._root, {name: given.get(name) for name in entry.inputs})

    def _settle(self, scope: TensorScope, tensors: dict[str, Tensor | None]) -> None:
        """Take new tensors, begin what can begin now, and answer if that was all."""
        touched: dict[TensorScope, None] = {}
        pending = [(scope, tensors)]
        while pending:
            where, new = pending.pop()
            for name, tensor in new.items():
                where.settle(name, tensor)
            for inner in where.inwards():
                touched[inner] = None
                for name in new:
                    for step in self._plan.consumers.get(name, ()):
                        skipped = self._consider(step, inner)
                        if skipped:
                            pending.append((inner, dict.fromkeys(step.outputs.values())))
        self._launch()
        for each in touched:
            self._answer(each)
        self._end_if_idle()

    def _consider(self, step: Step, scope: TensorScope) -> bool:
        """Begin a step whose tensors are all settled; returns whether it is skipped."""
        if not all(map(scope.settled, step.reads)) or not scope.begin(step.number):
            return False
        if not self._is_wanted(step, scope):
            return True
        entry = self._models.resolve(step.model, step.version)
        if not self._has_inputs(step, scope, entry):
            return True
        self._ready.append((step, scope, entry))
        return False

    def _is_wanted(self, step: Step, scope: TensorScope) -> bool:
        """Return what the step's condition says; a step without one is always wanted."""
        if step.when is None:
            return True
        tensor = scope.get(step.when.tensor)
        return tensor is not None and _truth(tensor) is not step.when.negated

    def _has_inputs(self, step: Step, scope: TensorScope, entry: VersionEntry) -> bool:
        """Return whether skipped steps left out no input that the model requires."""
        # What the client left out is for the model to object to.
        inner = [pair for pair in step.inputs if pair[1] not in self._entry.inputs]
        absent = [name for name, tensor in inner if scope.get(tensor) is None]
        return all(name in entry.inputs and entry.inputs[name].optional for name in absent)

    def _launch(self) -> None:
        """Send what is ready, as far as `max_inflight_requests` lets it."""
        try:
            for _ in range(len(self._ready)):
                step, scope, entry = self._ready.popleft()
                if self._plan.limit and self._under_way[step.number] >= self._plan.limit:
                    self._ready.append((step, scope, entry))
                    continue
                self._call(step, scope, entry)
        except InferError as error:
            self._fail(error.failure)

    def _call(self, step: Step, scope: TensorScope, entry: VersionEntry) -> None:
        if self._done:
            return
        number = self._next_call
        self._next_call += 1
        self._under_way[step.number] += 1
        sink = partial(self._answered, number, step, scope, entry)
        request = self._step_request(step, scope, entry)
        if self._traced is not None:
            self._noted[number] = self._traced.begin(request, time.monotonic_ns())
        self._calls[number] = self._models.submit(entry, request, sink)

    def _step_request(self, step: Step, scope: TensorScope, entry: VersionEntry) -> InferRequest:
        inputs = []
        for name, source in step.inputs:
            tensor = scope.get(source)
            if tensor is not None:
                inputs.append(_renamed(tensor, name, entry.inputs.get(name)))
        request = self._request
        return msgspec.structs.replace(
            request,
            model_name=step.model,
            model_version=step.version,
            inputs=tuple(inputs),
            outputs=step.requested,
            chain=(*request.chain, self._entry.name),
        )

    def _answered(
        self, number: int, step: Step, scope: TensorScope, entry: VersionEntry, response: InferResponse
    ) -> None:
        if self._traced is not None:
            self._noted[number].note(response)
        if response.final:
            self._calls.pop(number, None)
            self._under_way[step.number] -= 1
            self._noted.pop(number, None)
        if self._done:
            return
        if response.failure is not None:
            self._fail(response.failure)
            return
        try:
            if response.outputs or not entry.decoupled:
                self._take(step, scope, entry, response)
            else:
                self._launch()
                self._end_if_idle()
        except InferError as error:
            self._fail(error.failure)

    def _take(self, step: Step, scope: TensorScope, entry: VersionEntry, response: InferResponse) -> None:
        if entry.decoupled:
            self._scopes += 1
            if self._scopes > MAX_SCOPES:
                raise unavailable(f"a decoupled step has more than {MAX_SCOPES} responses waiting")
            scope = TensorScope(scope)
        mapping = step.outputs
        tensors: dict[str, Tensor | None] = {
            mapping[tensor.name]: tensor for tensor in response.outputs if tensor.name in mapping
        }
        if entry.ensemble:  # one that skipped a step: what it did not answer with, there is not
            tensors = {**dict.fromkeys(mapping.values()), **tensors}
        self._settle(scope, tensors)

    def _answer(self, scope: TensorScope) -> None:
        """Send the outputs of a scope when all are there."""
        if self._done or not all(map(scope.settled, self._plan.outputs)) or not scope.answer():
            return
        specs = self._entry.outputs
        present = [(name, scope.get(name)) for name in self._plan.outputs]
        outputs = tuple(_renamed(t, name, specs[name]) for name, t in present if t is not None)
        if self._entry.decoupled:
            self._deliver(self._sink, self._response(outputs, final=False))
            if scope is not self._root:
                scope.close()
                self._scopes -= 1
        else:
            self._finish(outputs)

    def _end_if_idle(self) -> None:
        """Nothing runs and nothing can: a decoupled ensemble is over, any other is stuck."""
        if self._done or self._calls or self._ready:
            return
        if self._entry.decoupled:
            self._finish(())
        else:
            self._fail(Failure(ErrorCode.INTERNAL, DEADLOCK))

    def _finish(self, outputs: tuple[Tensor, ...]) -> None:
        self._ensemble.statistics.record_success(self._rows, time.monotonic_ns() - self._started_ns)
        self._deliver_last(outputs)

    def _deliver_last(self, outputs: tuple[Tensor, ...]) -> None:
        sink = self._end()
        self._deliver(sink, self._with_trace(self._response(outputs, final=True)))

    def _end(self) -> Sink:
        """Nothing more is to be done; returns whom to tell."""
        self._done = True
        self._ready.clear()
        sink, self._sink = self._sink, no_sink
        self._root.drop()
        return sink

    def _response(self, outputs: tuple[Tensor, ...], final: bool) -> InferResponse:
        if outputs and not self._responded:
            self._responded = True
            self._ensemble.statistics.record_first_response(time.monotonic_ns() - self._started_ns)
        version = str(self._entry.version)
        ends_only = final and self._entry.decoupled
        parameters = {} if ends_only else _sequence_parameters(self._request)
        return InferResponse(self._entry.model, version, outputs, self._request.id, parameters, final)

    def _with_trace(self, response: InferResponse) -> InferResponse:
        if self._traced is None:
            return response
        started = self._started_ns
        times = Timestamps(started, started, request_end=time.monotonic_ns())
        return msgspec.structs.replace(response, timestamps=times, calls=tuple(self._traced.ended))

    def _deliver(self, sink: Sink, response: InferResponse) -> None:
        if self._starting:
            asyncio.get_running_loop().call_soon(sink, response)
        else:
            sink(response)

    def _fail(self, failure: Failure, prefixed: bool = True) -> None:
        """End with an error; `prefixed`: of what the ensemble did, rather than of the request itself."""
        if self._done:
            return
        sink = self._end()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.cancel()
        entry = self._entry
        named = ("", "")
        if prefixed:  # For the ensemble's counters it is no matter why the step has failed.
            failure = Failure(failure.code, f"in ensemble '{entry.model}', {failure.message}")
            named = (entry.model, str(entry.version))
        self._ensemble.statistics.record_failure(time.monotonic_ns() - self._started_ns, failure.reason)
        # Later: the sink must be called neither before `submit` has returned nor before `cancel` has.
        response = self._with_trace(InferResponse(*named, id=self._request.id, failure=failure))
        asyncio.get_running_loop().call_soon(sink, response)


def _sequence_parameters(request: InferRequest) -> Parameters:
    """What Triton's ensembles say of the sequence, whether there is one or not; a number is an int64."""
    identity = request.sequence_id
    if isinstance(identity, int) and identity >= 1 << 63:
        identity -= 1 << 64
    return {
        "sequence_id": identity,
        "sequence_start": request.sequence_start,
        "sequence_end": request.sequence_end,
    }


def _circular(chain: tuple[str, ...]) -> InferError:
    return invalid_arg(f"circular call of models: {' -> '.join(chain)}")


def _renamed(tensor: Tensor, name: str, spec: TensorSpec | None) -> Tensor:
    """The same bytes under another name; a batch dimension of 1 comes or goes where only one side has it."""
    shape = tensor.shape
    if spec is not None and len(shape) != len(spec.shape):
        if len(spec.shape) == len(shape) + 1 and len(spec.dims) == len(shape):
            shape = (1, *shape)
        elif spec.shape == spec.dims and shape[:1] == (1,) and _fits(shape[1:], spec.dims):
            shape = shape[1:]
    return Tensor(name, tensor.datatype, shape, tensor.data)


def _fits(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    fits = (dim in (WILDCARD, size) for size, dim in zip(shape, expected, strict=False))
    return len(shape) == len(expected) and all(fits)


def _truth(tensor: Tensor) -> bool:
    if tensor.datatype != "BOOL":
        raise invalid_arg(f"condition '{tensor.name}' must be a BOOL tensor, got {tensor.datatype}")
    return bool(np.frombuffer(tensor.data, np.uint8).any())
