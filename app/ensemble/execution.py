"""One request of any ensemble in flight: with conditions, decoupled steps, limits, traces.

Most need less, and follow a plan (`app/ensemble/planned.py`).
"""

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property, partial
from typing import Final

import msgspec
import numpy as np

from app.core.errors import ErrorCode, Failure, invalid_arg, unavailable
from app.core.inference import Call, Sink
from app.core.observability.traced import OpenCall, TracedCalls
from app.core.system.random_ids import random_id
from app.core.tensors import InferRequest, InferResponse, RolloutHint, Tensor, Timestamps
from app.ensemble.call import EnsembleCall, check_circular
from app.ensemble.compiled import CompiledEnsemble
from app.ensemble.graph import Step
from app.ensemble.plan import Models
from app.ensemble.scope import Absent, TensorScope
from app.ensemble.shapes import as_output, renamed, reshaped
from app.routing.table import VersionEntry

logger = logging.getLogger(__name__)

MAX_SCOPES: Final = 65536
"""Responses of decoupled steps within one request whose own outputs have not been sent yet."""

DEADLOCK: Final = (
    "unexpected deadlock, at least one output is not set while no more ensemble steps can be made"
)


class StepCall:
    """One call of a step: the version that answers it, the tensors it reads, its trace if there is one."""

    __slots__ = ("entry", "scope", "step", "trace")

    def __init__(self, step: Step, scope: TensorScope, entry: VersionEntry) -> None:
        self.step = step
        self.scope = scope
        self.entry = entry
        self.trace: OpenCall | None = None


class EnsembleExecution(EnsembleCall):
    """Starts each step when all tensors it reads are known, and responds when all outputs are."""

    def __init__(self, ensemble: CompiledEnsemble, models: Models, request: InferRequest, sink: Sink) -> None:
        super().__init__(ensemble, request, sink)
        self._models = models
        self._graph = ensemble.graph_for(request)
        self._root = TensorScope()
        self._queued: dict[StepCall, None] = {}
        self._calls: dict[StepCall, Call] = {}
        self._scopes = 0
        self._responded = False
        self._traced = TracedCalls() if request.trace else None

    @property
    def _in_flight(self) -> Iterable[Call]:
        return self._calls.values()

    def _release(self) -> Collection[Call]:
        for call in self._queued:
            self._ensemble.slots.forget(call.step.number, call)
        self._queued.clear()
        self._root.unlink()
        calls, self._calls = self._calls, {}
        return calls.values()

    def _run(self) -> None:
        entry = self._entry
        given = {tensor.name: reshaped(tensor, entry.inputs[tensor.name]) for tensor in self.request.inputs}
        self._add_tensors(self._root, {name: given.get(name, Absent.LEFT_OUT) for name in entry.inputs})

    def _add_tensors(self, scope: TensorScope, tensors: Mapping[str, Tensor | Absent]) -> None:
        """Store new tensors, start the steps that can start now, and respond if all outputs are known."""
        touched: dict[TensorScope, None] = {}
        pending = [(scope, tensors)]
        while pending:
            where, new = pending.pop()
            for name, tensor in new.items():
                where.set(name, tensor)
            for inner in where.with_descendants():
                touched[inner] = None
                for name in new:
                    for step in self._graph.consumers.get(name, ()):
                        skipped = self._queue(step, inner)
                        if skipped:  # nothing will ever write its outputs, which may skip other steps
                            pending.append((inner, dict.fromkeys(step.outputs.values(), Absent.SKIPPED)))
        self._send_queued()
        known = [each for each in touched if self._is_to_be_answered(each)]
        for each in known:
            self._respond(each, each is known[-1])
        self._finish_if_idle()

    def _queue(self, step: Step, scope: TensorScope) -> bool:
        """Queue a call of a step if all tensors it reads are known; return whether the step is skipped."""
        if not all(map(scope.is_set, step.reads)) or not scope.mark_started(step.number):
            return False
        if not self._is_wanted(step, scope):
            return True
        entry = self._models.resolve(step.model, step.version)
        if not self._has_inputs(step, scope, entry):
            return True
        self._queued[StepCall(step, scope, entry)] = None
        return False

    def _is_wanted(self, step: Step, scope: TensorScope) -> bool:
        """Return the value of the step's condition; a step without one is always wanted."""
        if step.when is None:
            return True
        tensor = scope.get(step.when.tensor)
        return tensor is not None and _truth(tensor) is not step.when.negated

    def _has_inputs(self, step: Step, scope: TensorScope, entry: VersionEntry) -> bool:
        """Return whether skipped steps left out no input that the model requires."""
        # An input that the client or a model left out is refused by the model itself, with its own text.
        for name, tensor in step.inputs:
            if scope.is_skipped(tensor) and not (name in entry.inputs and entry.inputs[name].optional):
                return False
        return True

    def _send_queued(self) -> None:
        """Send queued calls, as far as `max_inflight_requests` allows."""
        for call in tuple(self._queued):
            self._send_if_free(call)

    def _send_if_free(self, call: StepCall) -> None:
        """Send a queued call if its step has a slot; this is called again when it has."""
        slots, step = self._ensemble.slots, call.step.number
        if self.ended or not slots.take(step, call, partial(self._send_if_free, call)):
            return
        del self._queued[call]
        try:
            self._send(call)
        except Exception as error:
            slots.give_back(step)
            self._fail_by(error)

    def _send(self, call: StepCall) -> None:
        request = self._step_request(call)
        if self._traced is not None:
            call.trace = self._traced.begin(request, time.monotonic_ns())
        sent = self._calls[call] = call.entry.target.submit(request, partial(self._receive, call))
        if self.advised:
            sent.cancel(advice=True)

    def _step_request(self, call: StepCall) -> InferRequest:
        step = call.step
        chain = (*self.request.chain, self._entry.name)
        if self.request.chain:  # part of a call of a model, which this may be a step of
            check_circular(call.entry, chain)
        inputs = []
        for name, source in step.inputs:
            tensor = call.scope.get(source)
            if tensor is not None:
                inputs.append(renamed(tensor, name, call.entry.inputs.get(name)))
        request = self.request
        return msgspec.structs.replace(
            request,
            model_name=step.model,
            model_version=step.version,
            inputs=tuple(inputs),
            outputs=step.requested,
            chain=chain,
            rollout=self._group if call.entry.split is not None or call.entry.ensemble else None,
        )

    @cached_property
    def _group(self) -> RolloutHint:
        """The key that the calls of one request share, so that they get the same version of a model."""
        request = self.request
        if request.chain and request.rollout is not None:
            return request.rollout
        return RolloutHint(key=request.id or random_id())

    def _receive(self, call: StepCall, response: InferResponse) -> None:
        if call.trace is not None:
            call.trace.record(response)
        if response.final:
            self._calls.pop(call, None)
            self._ensemble.slots.give_back(call.step.number)
        if self.ended:
            return
        if response.failure is not None:
            self._fail(response.failure)
            return
        try:
            if response.outputs or not call.entry.decoupled:
                self._add_outputs(call, response)
            else:
                self._finish_if_idle()
        except Exception as error:
            self._fail_by(error)

    def _add_outputs(self, call: StepCall, response: InferResponse) -> None:
        scope, names = call.scope, call.step.outputs
        if call.entry.decoupled:
            self._scopes += 1
            if self._scopes > MAX_SCOPES:
                raise unavailable(f"a decoupled step has more than {MAX_SCOPES} responses waiting")
            scope = TensorScope(scope)
        # An ensemble leaves an output out when it has skipped the step that writes it.
        absent = Absent.SKIPPED if call.entry.ensemble else Absent.LEFT_OUT
        written = {names[tensor.name]: tensor for tensor in response.outputs if tensor.name in names}
        self._add_tensors(scope, {**dict.fromkeys(names.values(), absent), **written})

    def _is_to_be_answered(self, scope: TensorScope) -> bool:
        """Whether all outputs of a scope are known now; true once for each scope, which is marked."""
        return not self.ended and all(map(scope.is_set, self._graph.outputs)) and scope.mark_answered()

    def _respond(self, scope: TensorScope, is_last: bool) -> None:
        """Send the outputs of a scope, with the end if nothing is left to do.

        Clients of Triton rely on that: they need not ask for a response that only says that it is the last.
        """
        if self.ended:
            return
        specs = self._entry.outputs
        present = [(name, scope.get(name)) for name in self._graph.outputs]
        outputs = tuple(as_output(t, specs[name]) for name, t in present if t is not None)
        for name, tensor in present:
            if tensor is None:
                logger.debug("Composing models did not output tensor %s", name)
        if self._entry.decoupled and not (is_last and self._is_idle):
            self._deliver(self.sink, self._response(outputs, final=False))
            if scope is not self._root:
                scope.detach()
                self._scopes -= 1
        else:
            self._finish(outputs)

    @property
    def _is_idle(self) -> bool:
        return not self._calls and not self._queued

    def _finish_if_idle(self) -> None:
        """End if no call is in flight or queued: a decoupled ensemble is complete, any other is stuck."""
        if self.ended or not self._is_idle:
            return
        if self._entry.decoupled:
            self._finish(())
        else:
            self._fail(Failure(ErrorCode.INTERNAL, DEADLOCK))

    def _response(self, outputs: tuple[Tensor, ...], final: bool) -> InferResponse:
        if outputs and not self._responded:
            self._responded = True
            self._ensemble.statistics.record_first_response(time.monotonic_ns() - self._started_ns)
        return super()._response(outputs, final)

    def _traced_response(self, response: InferResponse) -> InferResponse:
        if self._traced is None:
            return response
        started = self._started_ns
        times = Timestamps(started, started, request_end=time.monotonic_ns())
        return msgspec.structs.replace(response, timestamps=times, calls=tuple(self._traced.ended))


def _truth(tensor: Tensor) -> bool:
    """Return whether any element of a BOOL tensor is true."""
    if tensor.datatype != "BOOL":
        raise invalid_arg(f"condition '{tensor.name}' must be a BOOL tensor, got {tensor.datatype}")
    return bool(np.frombuffer(tensor.data, np.uint8).any())
