"""Execution instances: one thread each, entered by one batch at a time."""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from app.core.errors import ErrorCode, Failure, FailureReason, InferError
from app.core.system.main_thread import new_thread
from app.core.tensors import SequenceId
from app.transport.loops.watchdog import LoopWatchdog
from backends.base import Backend, Begun, Instance
from deployments.event_loop_execution.executor import EventLoopExecutor, is_eligible, needs_thread
from deployments.execution import host_policy
from deployments.execution.queued_request import QueuedRequest, ResponseQueue
from deployments.execution.remote_executor import RemoteExecutor
from deployments.execution.warmup import warm_up

logger = logging.getLogger(__name__)

_LONG_NS = 10_000_000
"""After an execution over 10 ms, the instance is given its next batch before the responses are sent."""

UNANSWERED = "model instance '{}' returned without a response for this request"
RESCHEDULED = (
    "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to"
    " handle such a flag"
)


class Cells(Protocol):
    """Cells in which instances write when their executions began; see `Activity` of a model's process."""

    def cell(self) -> memoryview: ...


_activity: Cells | None = None


def record_activity_in(activity: Cells) -> None:
    """Have the instances that are made from now on write there when their executions begin and end."""
    global _activity
    _activity = activity


class Batch:
    """Requests of one execution, `nulls` of them padding; times are `time.monotonic_ns`."""

    done: asyncio.Future[None] | None = None
    begun: Begun | None = None
    nulls = start_ns = infer_start_ns = infer_end_ns = end_ns = 0

    def __init__(self, requests: list[QueuedRequest], rows: int, release: str = "direct") -> None:
        self.requests = requests
        self.rows = rows
        self.release = release


class InstanceThread:
    """A thread that loads one instance, executes its batches and finally unloads it.

    An eligible instance executes on the event loop instead while its executions are short, and what another
    process executes is sent by the loop; see docs/develop/event_loop.md.
    """

    may_wait = False
    """Its batches may have to wait before they execute."""

    def __init__(
        self,
        backend: Backend,
        instance: Instance,
        responses: ResponseQueue,
        loop: asyncio.AbstractEventLoop,
        finished: Callable[["InstanceThread", Batch], None],
        watchdog: LoopWatchdog,
    ) -> None:
        self.instance = instance
        instance.deliver_all = responses.deliver_all
        self._backend = backend
        self._responses = responses
        # Of a model that is not decoupled, responses come with the end of the execution.
        self._one_response = not instance.model.config.model_transaction_policy.decoupled
        self.is_only_instance = True
        """The model has no other instance in this replica."""
        self.executing: Batch | None = None
        """What its thread, or its process, executes now."""
        self.has_time_limit = False
        """Its executions must not keep the loop, which ends them after a time."""
        self._loop = loop
        self._finished = finished
        self._watchdog = watchdog
        self._work: queue.SimpleQueue[Batch | SequenceId | Callable[[], object] | None] = queue.SimpleQueue()
        self._finalizes_sequences = type(backend).sequence_finalize is not Backend.sequence_finalize
        self._loop_executor: EventLoopExecutor[Batch] | None = None
        self._remote: RemoteExecutor[Batch] | None = None
        self._on_thread: Batch | None = None  # the last one that its thread was given, until that is reported
        self._began = memoryview(bytearray(8)).cast("q") if _activity is None else _activity.cell()
        self._loaded = threading.Event()
        self._error: BaseException | None = None
        self._thread = new_thread(self._run, instance.name)

    @property
    def alive(self) -> bool:
        """Whether the thread can execute batches."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to load and warm up, in the thread that will execute (frameworks keep state per thread)."""
        self._thread.start()

    def wait_loaded(self) -> None:
        """Wait until the instance is loaded and warmed up.

        Raises:
            Exception: raised by the backend's `instance_initialize` or by a warm-up request.
        """
        self._loaded.wait()
        if self._error is not None:
            raise self._error

    @property
    def executes_on_loop(self) -> bool:
        """Whether the next batch will execute on the event loop."""
        return self._next_executor() is not None

    def _next_executor(self) -> EventLoopExecutor[Batch] | None:
        """Return what executes the next batch on the event loop; None where its thread or process does."""
        executor = self._loop_executor
        if executor is None or self.instance.elsewhere or not executor.is_next(self.is_only_instance):
            return None
        return executor

    @property
    def accepts_prefetch(self) -> bool:
        """Whether it accepts a batch while it executes another, since no other instance could execute it."""
        return self.is_only_instance and not self.executes_on_loop

    def execute(self, batch: Batch) -> None:
        """Hand over a batch; `finished` is called on the loop when it is done, after this has returned."""
        executor = self._next_executor()
        if executor is not None:
            executor.schedule(batch)
        elif self._remote is None or self._on_thread is not None or not self._remote.start(batch):
            self._execute_on_thread(batch)

    def execute_at_once(self, batch: Batch) -> None:
        """Hand over a batch as `execute` does, in a callback of the loop's own.

        Where the loop executes it, it is done, and `finished` was called, when this returns.
        """
        executor = self._next_executor()
        if executor is not None:
            executor.run(batch)
        else:
            self.execute(batch)

    def _execute_on_thread(self, batch: Batch) -> None:
        self._on_thread = batch
        self._work.put(batch)

    def recover(self, wait: Callable[[], object], recovered: Callable[[], object]) -> None:
        """Call `wait` on this thread after what it was given before, then `recovered` on the loop."""

        def work() -> None:
            wait()
            self._loop.call_soon_threadsafe(recovered)

        self._work.put(work)

    def on_removed(self) -> None:
        """Release what the scheduler's side of the instance holds, after its last batch; on the loop."""

    def end_sequence(self, sequence_id: SequenceId) -> None:
        """Have the backend finalize a sequence that has ended, before its next batch."""
        if self._finalizes_sequences:
            self._work.put(sequence_id)

    def end(self) -> None:
        """Unload after the current batch, without waiting for it."""
        self._work.put(None)

    def stop(self, timeout: float | None) -> None:
        """Unload after the current batch; wait up to `timeout` seconds."""
        self.end()
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            host_policy.apply(self.instance.host_policy)
            self._backend.instance_initialize(self.instance)
        except BaseException as error:
            self._error = error
            self._loaded.set()
            return
        try:
            self._warm_up()
            self._loop_executor = self._make_loop_executor()
            self._remote = self._make_remote_executor()
            self._loaded.set()
            self._serve()
        except BaseException as error:
            self._error = error
        self._finalize()
        self._loaded.set()

    def _make_loop_executor(self) -> EventLoopExecutor[Batch] | None:
        if self.has_time_limit or not is_eligible(self._backend, self.instance):
            return None
        may_call_models = self._backend.may_call_models(self.instance)
        return EventLoopExecutor(
            self._loop,
            self._execute,
            self._report,
            self._responses,
            may_call_models,
            self._watchdog,
        )

    def _make_remote_executor(self) -> RemoteExecutor[Batch] | None:
        if type(self._backend).instance_begin is Backend.instance_begin or needs_thread(self.instance):
            return None
        return RemoteExecutor(self._loop, self._send, self._finish, self._report, self._execute_on_thread)

    def _warm_up(self) -> None:
        warm_up(self._backend, self.instance)

    def _serve(self) -> None:
        self._responses.defer_flush(self._one_response)
        while (work := self._work.get()) is not None:
            self._do(work)
            del work  # or its tensors would live until the next batch
        if self._remote is not None:
            self._remote.close()
            while not self._work.empty():  # its process has ended meanwhile
                if (work := self._work.get()) is not None:
                    self._do(work)
        self.instance.run_deferred()

    def _do(self, work: Batch | SequenceId | Callable[[], object]) -> None:
        if isinstance(work, Batch):
            self.executing = work
            self._execute(work)
            self.executing = None
            self._complete(work)
        elif isinstance(work, int | str):
            self.instance.run_deferred()
            self._finalize_sequence(work)
        else:
            work()

    def _complete(self, batch: Batch) -> None:
        """Report the end of a batch; if the next one is queued already, once its inputs are in place."""
        # Responses wake clients, whose new requests would be copied while this thread copies the inputs.
        report = partial(self._loop.call_soon_threadsafe, self._report, batch)
        if self._backend.begins_compute and not self._work.empty():
            self.instance.deferred_completion = report
        else:
            report()

    def _finalize_sequence(self, sequence_id: SequenceId) -> None:
        try:
            self._backend.sequence_finalize(self.instance, sequence_id)
        except Exception:
            logger.exception("ending sequence %s on instance %s", sequence_id, self.instance.name)

    def _finalize(self) -> None:
        executor, self._loop_executor = self._loop_executor, None
        if executor is not None:
            executor.close()
        try:
            self._backend.instance_finalize(self.instance)
        except Exception:
            logger.exception("finalizing instance %s", self.instance.name)

    def _send(self, batch: Batch) -> Begun | None:
        """Have the instance's process execute a batch, if it can at once; on the loop."""
        batch.start_ns = time.monotonic_ns()
        begun = self._backend.instance_begin(self.instance, batch.requests)
        if begun is not None:
            self.executing = batch
        return begun

    def _finish(self, batch: Batch) -> None:
        """Finish a batch that the instance's process has executed; on the loop."""
        self.executing = None
        self._responses.held = True
        try:
            self._execute(batch)
        finally:
            self._responses.held = False

    def _report(self, batch: Batch) -> None:
        if batch is self._on_thread:
            self._on_thread = None
        if batch.end_ns - batch.start_ns > _LONG_NS:  # it must not idle while responses are sent
            self._finished(self, batch)
            self._responses.flush()
        else:
            self._responses.flush()
            self._finished(self, batch)

    def _execute(self, batch: Batch) -> None:
        instance = self.instance
        instance.compute_start_ns = instance.compute_end_ns = 0
        try:
            if batch.begun is None:
                self._began[0] = batch.start_ns = time.monotonic_ns()
                self._backend.instance_execute(instance, batch.requests)
            else:
                batch.begun.finish()
        except InferError as error:
            _fail(batch.requests, Failure(error.code, error.message, FailureReason.BACKEND))
        except BaseException as error:  # SystemExit too: a model's exit() ends its batch, not the thread
            logger.exception("executing a batch on instance %s", instance.name)
            text = str(error) or repr(error)
            _fail(batch.requests, Failure(ErrorCode.INTERNAL, text, FailureReason.BACKEND))
        self._began[0] = 0
        if instance.deferred_completion is not None:
            instance.run_deferred()
        batch.end_ns = time.monotonic_ns()
        if self._loop_executor is not None:
            self._loop_executor.record(batch.end_ns - batch.start_ns, self.is_only_instance)
        batch.infer_start_ns = instance.compute_start_ns or batch.start_ns
        batch.infer_end_ns = instance.compute_end_ns or batch.end_ns
        for request in batch.requests:
            if request.infer.trace:
                request.computed = (batch.start_ns, batch.infer_start_ns, batch.infer_end_ns, batch.end_ns)
            if not request.answered:
                self._check_unanswered(request)

    def _check_unanswered(self, request: QueuedRequest) -> None:
        """Fail a request without a response; a decoupled model may still send one from its own thread."""
        text = ""
        if request.rescheduled:
            text = "" if request.may_reschedule else RESCHEDULED
        elif self._one_response and request.unanswered:
            text = UNANSWERED
        if text:
            message = text.format(self.instance.name)
            request.fail(Failure(ErrorCode.INTERNAL, message, FailureReason.BACKEND))


def _fail(requests: list[QueuedRequest], failure: Failure) -> None:
    for request in requests:
        request.fail(failure)
