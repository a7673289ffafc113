"""A loaded model version: checks requests, schedules them and delivers their responses."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from types import MethodType

from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.request_check import RequestChecker
from app.core.errors import FailureReason, InferError, invalid_arg
from app.core.inference import Cancel, Sink
from app.core.observability.durations import MANY
from app.core.observability.statistics import Statistics
from app.core.tensors import InferRequest, InferResponse, Timestamps, TracedCall
from app.transport.memory.client_regions import read_inputs, write_outputs
from backends.base import Backend, Model
from deployments.environments.prepare import Environment
from deployments.execution.queued_request import QueuedRequest, ResponseQueue
from deployments.execution.request_activity import RequestActivity
from deployments.replica.cached_scheduler import CachedScheduler
from deployments.replica.compiled_requests import Make
from deployments.replica.instance_pool import InstancePool
from deployments.scheduling.base import Scheduler

logger = logging.getLogger(__name__)


class ServedModel:
    """One model version of a replica; `deployments.replica.loading.load_model` makes it.

    `close` blocks and is called from any thread but the loop's; everything else runs on the data-plane loop.

    Args:
        model: the model with its complete configuration.
        backend: the initialized backend.
        environment: the model's Python environment; released by `close`.
        statistics: counters of this replica.
        scheduler: the scheduler of the configuration.
        cached: the response cache in front of the scheduler, if the model has one.
        loop: the data-plane loop.
        make_instances: makes the pool whose instances answer through the given queue.
        compiled: makes the compiled way of plain requests; None where Python does all.

    Attributes:
        accept: `submit`, or what C has in its place (`use_compiled`).
    """

    def __init__(
        self,
        model: Model,
        backend: Backend,
        environment: Environment,
        statistics: Statistics,
        scheduler: Scheduler,
        cached: CachedScheduler | None,
        loop: asyncio.AbstractEventLoop,
        make_instances: Callable[[ResponseQueue], InstancePool],
        compiled: Make | None = None,
    ) -> None:
        self.model = model
        self.backend = backend
        self.statistics = statistics
        self.scheduler = scheduler
        self.cached = cached
        self._loop = loop
        self._responses = ResponseQueue(loop, self._deliver)
        self.instances = make_instances(self._responses)
        self._environment = environment
        self._version = str(model.version)
        self._checker = RequestChecker(model.config, *(() if compiled is None else (compiled.plain_rows,)))
        self._is_decoupled = model.config.model_transaction_policy.decoupled
        self._times_first = statistics.times_first
        self._in_flight: set[QueuedRequest] = set()
        self._awaiting_first: set[QueuedRequest] = set()
        """Requests whose first response is still to be timed."""
        self.accept: Callable[[InferRequest, Sink], Cancel] = self.submit
        if compiled is not None and self._is_plain:
            self.use_compiled(compiled)

    def use_compiled(self, make: Make) -> None:
        """Have plain requests go past `submit` and `_deliver`, through C; see `app/native/__init__.py`."""
        requests = make(
            submit=self.submit,
            deliver=self._deliver,
            cancel=self._cancel,
            refused=self._count_refusal,
            record=self.statistics.record_success,
            read=read_inputs,
            write=write_outputs,
            scheduler=self.scheduler,
            responses=self._responses,
            in_flight=self._in_flight,
            durations=self.statistics.new_durations,
            many=MANY,
        )
        self.accept = requests.submit
        self._responses.use_compiled(requests.deliver, requests.deliver_all)

    @property
    def _is_plain(self) -> bool:
        """Whether nothing but the scheduler and the instances has to know of a request."""
        return self.scheduler.request_class is QueuedRequest and self.cached is None and not self._times_first

    @property
    def config(self) -> mc.ModelConfig:
        """The complete configuration."""
        return self.model.config

    @property
    def in_flight(self) -> Collection[QueuedRequest]:
        """Requests accepted and without their final response."""
        return self._in_flight

    @property
    def outstanding(self) -> int:
        """Requests accepted and without their final response."""
        return len(self._in_flight)

    @property
    def healthy(self) -> bool:
        """Whether every instance can still execute batches."""
        return self.instances.healthy

    def submit(self, request: InferRequest, sink: Sink) -> Cancel:
        """Validate and queue a request; return the function that cancels it.

        Raises:
            InferError: INVALID_ARG for what the configuration forbids, UNAVAILABLE when the queue is full.
        """
        arrival = time.monotonic_ns()
        try:
            if request.regions:
                request = read_inputs(request)
            rows = self._checker.check(request)
            pending = self.scheduler.request_class(request, sink, self._responses, rows)
            (self.cached or self.scheduler).schedule(pending)
        except InferError as error:
            self._count_refusal(arrival, error)
            raise
        self._in_flight.add(pending)
        pending.accepted = True
        if self._times_first:
            self._awaiting_first.add(pending)
        return MethodType(self._cancel, pending)

    def _count_refusal(self, arrival_ns: int, error: BaseException) -> None:
        # As in Triton, a client's mistake is not counted as a failure of the model.
        if isinstance(error, InferError) and error.reason is not FailureReason.OTHER:
            self.statistics.record_failure(time.monotonic_ns() - arrival_ns, error.reason)

    def execute_together(self, requests: Sequence[tuple[InferRequest, Sink]]) -> None:
        """Execute requests in one batch at once, past the scheduler's policy: for unit tests of a model.

        Raises:
            InferError: INVALID_ARG for requests that cannot be one batch, UNAVAILABLE if no instance is free.
        """
        made = self.scheduler.request_class
        checked = [(infer, sink, self._responses, self._checker.check(infer)) for infer, sink in requests]
        pending = [made(*each) for each in checked]
        rows, largest = sum(each.rows for each in pending), self.config.max_batch_size
        if len(pending) > 1 and rows > largest:
            raise invalid_arg(f"{rows} rows are more than max_batch_size, {largest}, of '{self.model.name}'")
        self.scheduler.execute_together(pending)
        for each in pending:
            self._in_flight.add(each)
            each.accepted = True

    async def open(self) -> None:
        """Start to execute submitted requests."""
        if self.cached is not None:
            self.cached.open()
        await self.instances.open()

    def close(self, timeout: float) -> None:
        """Stop the instances, `timeout` seconds for each, and finalize the backend."""
        self.instances.close(timeout)
        try:
            self.scheduler.close()
            if self.cached is not None:
                asyncio.run_coroutine_threadsafe(self.cached.close(), self._loop).result(timeout)
            self.backend.model_finalize(self.model)
            self.backend.finalize()
        except Exception:
            logger.exception("finalizing model '%s'", self.model.name)
        self._environment.release()

    def _cancel(self, pending: QueuedRequest, advice: bool = False) -> None:
        again, pending.cancelled = pending.cancelled, True
        if advice and pending.activity is None:
            pending.activity = RequestActivity()
        if pending.activity is not None:
            pending.activity.cancel(advice)
        if again:  # advice may be repeated, and a cancellation follow it
            return
        if not (pending.dispatch_ns and self._is_decoupled):  # its client may have received enough
            answered = self.statistics.succeeded
            self.scheduler.admission.record_departure(pending, answered)
        (self.cached or self.scheduler).cancel(pending)
        self.instances.cancel(pending)

    def _deliver(self, pending: QueuedRequest, response: InferResponse) -> None:
        if pending not in self._in_flight:  # two threads of a backend finished it at the same moment
            return
        if self._awaiting_first and pending in self._awaiting_first:
            self._record_first_response(pending, response)
        if self.cached is not None and response.final:
            self.cached.finished(pending, response)
        # The client of a cancelled request may already use its memory for something else.
        if pending.infer.regions and not pending.cancelled:
            response = write_outputs(pending.infer, response)
        if response.final:
            self._in_flight.discard(pending)
            self._account(pending, response)
        infer = pending.infer
        pending.sink(
            InferResponse(
                self.model.name,
                self._version,
                response.outputs,
                infer.id,
                response.parameters,
                response.final,
                response.failure,
                _timestamps(pending, response) if infer.trace and response.final else None,
                () if pending.activity is None else _traced_calls(pending, response),
            )
        )

    def _record_first_response(self, pending: QueuedRequest, response: InferResponse) -> None:
        self._awaiting_first.discard(pending)
        if response.failure is None:
            self.statistics.record_first_response(time.monotonic_ns() - pending.arrival_ns)

    def _account(self, pending: QueuedRequest, response: InferResponse) -> None:
        now = time.monotonic_ns()
        if response.failure is None:
            self.statistics.record_success(now - pending.arrival_ns, pending.dispatch_ns - pending.arrival_ns)
        else:
            self.statistics.record_failure(now - pending.arrival_ns, response.failure.reason)


def _traced_calls(pending: QueuedRequest, response: InferResponse) -> tuple[TracedCall, ...]:
    """Return the calls to other models that a traced request made, for its final response."""
    return tuple(pending.activity.traced.ended) if pending.infer.trace and response.final else ()


def _timestamps(pending: QueuedRequest, response: InferResponse) -> Timestamps:
    """Return the times of a finished request; steps that it did not reach are 0 or repeat an earlier time."""
    now, arrival, dispatch = time.monotonic_ns(), pending.arrival_ns, pending.dispatch_ns
    unknown = (dispatch, 0, 0, 0)
    if response.failure is None and dispatch > arrival:  # what the cache answers is dispatched at its arrival
        unknown = (dispatch, dispatch, now, now)  # a backend may answer before its execution has ended
    start, infer, output, end = pending.computed or unknown
    activities = () if pending.activity is None else tuple(pending.activity.activities)
    return Timestamps(arrival, arrival, start, infer, output, end, now, activities)
