"""A request of an ensemble in flight, whatever its steps do: its checks, its counters, its end."""

import asyncio
import logging
import time
from abc import abstractmethod
from collections.abc import Collection, Iterable

import msgspec

from app.core.errors import Failure, FailureReason, InferError, invalid_arg
from app.core.failures import CANCELLED
from app.core.inference import Call, InFlight, Sink, no_sink
from app.core.tensors import InferRequest, InferResponse, Parameters, Tensor
from app.ensemble.compiled import CompiledEnsemble
from app.routing.table import VersionEntry

logger = logging.getLogger(__name__)


class EnsembleCall(InFlight):
    """Runs the steps of one request; a step that fails ends it, and cancels those in flight."""

    __slots__ = ("_ensemble", "_entry", "_rows", "_started_ns", "_starting")

    def __init__(self, ensemble: CompiledEnsemble, request: InferRequest, sink: Sink) -> None:
        super().__init__(request, sink)
        self._ensemble = ensemble
        self._entry = ensemble.entry
        self._rows = 1
        self._starting = True
        self._started_ns = time.monotonic_ns()

    def start(self) -> None:
        """Start the first steps; the sink is not called before this returns."""
        try:
            self._rows = self._ensemble.checker.check(self.request)
        except InferError as error:
            self._fail(error.failure, prefixed=False)
            return
        try:
            if self.request.chain:
                check_circular(self._entry, self.request.chain)
            self._run()
        except Exception as error:
            self._fail_by(error)
        self._starting = False

    def cancel(self, advice: bool = False) -> None:
        """Cancel the calls in flight; the sink gets a CANCELLED failure, unless it had a final response.

        With `advice` the models of these and of later steps are told, and the request goes on.
        """
        if advice:
            self.advised = True
            for call in list(self._in_flight):
                call.cancel(advice)
            return
        self._fail(CANCELLED, prefixed=False)

    @abstractmethod
    def _run(self) -> None:
        """Start the first steps of a request that was checked."""

    @property
    @abstractmethod
    def _in_flight(self) -> Iterable[Call]:
        """Calls of steps without their final response."""

    @abstractmethod
    def _release(self) -> Collection[Call]:
        """Release what the request holds, for it has ended; return the calls in flight."""

    def _finish(self, outputs: tuple[Tensor, ...]) -> None:
        """End with the outputs of the ensemble."""
        took_ns = time.monotonic_ns() - self._started_ns
        # An ensemble has no queue and executes nothing itself: compute_infer is the time of all its steps.
        self._ensemble.statistics.record_execution(self._rows, 1, 0, took_ns, 0)
        self._ensemble.statistics.record_success(took_ns, queue_ns=0)
        self._send_final(outputs)

    def _send_final(self, outputs: tuple[Tensor, ...]) -> None:
        sink, self.sink = self.sink, no_sink
        self._release()
        self._deliver(sink, self._traced_response(self._response(outputs, final=True)))

    def _response(self, outputs: tuple[Tensor, ...], final: bool) -> InferResponse:
        entry, request = self._entry, self.request
        is_end_of_stream = final and entry.decoupled and not outputs
        parameters = {} if is_end_of_stream else _sequence_parameters(request)
        return InferResponse(entry.model, self._ensemble.version, outputs, request.id, parameters, final)

    def _traced_response(self, response: InferResponse) -> InferResponse:
        return response

    def _deliver(self, sink: Sink, response: InferResponse) -> None:
        if self._starting:
            asyncio.get_running_loop().call_soon(sink, response)
        else:
            sink(response)

    def _fail_by(self, error: Exception) -> None:
        """End with what was raised: a request ends, whatever routes its steps does."""
        if not isinstance(error, InferError):
            logger.error("a step of ensemble '%s' could not be sent", self._entry.name, exc_info=error)
        self._fail(Failure.from_exception(error))

    def _fail(self, failure: Failure, prefixed: bool = True) -> None:
        """End with a failure; `prefixed` says that it comes from a step, rather than from the request."""
        if self.ended:
            return
        sink, self.sink = self.sink, no_sink
        for call in self._release():
            call.cancel()
        entry = self._entry
        model = ("", "")
        reason = failure.reason
        if prefixed:
            text = f"in ensemble '{entry.model}', {failure.message}"
            failure = msgspec.structs.replace(failure, message=text)
            model = (entry.model, self._ensemble.version)
            reason = FailureReason.OTHER  # an ensemble's own counters do not distinguish a step's reasons
        for _ in range(1 + prefixed):  # Triton counts a step's failure twice: for the step and the request
            self._ensemble.statistics.record_failure(time.monotonic_ns() - self._started_ns, reason)
        response = self._traced_response(InferResponse(*model, id=self.request.id, failure=failure))
        # Later, because the sink must be called neither before `submit` has returned nor before `cancel` has.
        asyncio.get_running_loop().call_soon(sink, response)


def _sequence_parameters(request: InferRequest) -> Parameters:
    """Return the parameters that Triton's ensembles always send; a numeric id is written as an int64."""
    identity = request.sequence_id
    if isinstance(identity, int) and identity >= 1 << 63:
        identity -= 1 << 64
    return {
        "sequence_id": identity,
        "sequence_start": request.sequence_start,
        "sequence_end": request.sequence_end,
    }


def check_circular(entry: VersionEntry, chain: tuple[str, ...]) -> None:
    """Raise INVALID_ARG if the calls that a request is part of hold all instances of a version."""
    if entry.waits_for_itself(chain):
        raise invalid_arg(f"circular call of models: {' -> '.join((*chain, entry.name))}")
