"""Execution instances: one thread each, entered by one batch at a time."""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

from app.core.errors import ErrorCode, Failure, FailureReason, InferError
from app.core.tensors import SequenceId
from backends.base import Backend, Instance
from deployments.bls.suspension import run_suspendable, waited
from deployments.execution import host_policy
from deployments.execution.queued_request import QueuedRequest, ResponseQueue
from deployments.execution.warmup import warm_up

logger = logging.getLogger(__name__)

_SHORT_NS = 1_000_000
"""An execution of a portable instance that takes less is worth no change of threads."""
_BRIEF_NS = 400_000
"""On average, where another instance has to wait for it: on threads, both would wait for the interpreter."""
_LONG_NS = 10_000_000
"""One that takes more should not have been on the loop."""
_SHORT_RUNS = 16
_MOST_SHORT_RUNS = 4096

UNANSWERED = "model instance '{}' returned without a response for this request"
RESCHEDULED = "model instance '{}' rescheduled a request, which only iterative sequences can do"


class Batch:
    """Requests that one execution answers, `nulls` of them nobody's; times are `time.monotonic_ns`."""

    __slots__ = (
        "done",
        "end_ns",
        "infer_end_ns",
        "infer_start_ns",
        "nulls",
        "release",
        "requests",
        "rows",
        "start_ns",
    )

    def __init__(self, requests: list[QueuedRequest], rows: int, release: str = "direct") -> None:
        self.requests = requests
        self.rows = rows
        self.release = release
        self.nulls = 0
        self.done: asyncio.Future[None] | None = None
        self.start_ns = self.infer_start_ns = self.infer_end_ns = self.end_ns = 0


class InstanceThread:
    """A thread that loads one instance, executes its batches and finally unloads it.

    Two changes of threads cost more than the execution of a small model. Where the instance may execute
    anywhere (`Backend.instance_portable`) and its executions have been short for a while, they take place on
    the loop, where those of several instances follow each other. One that is long after all goes back to the
    thread, and has to be short for longer. What an execution waits for other models
    (`Backend.instance_pauses`) does not count: the loop goes on meanwhile. Such an instance is there only
    if it is alone: what several wait could not be told apart.
    """

    def __init__(
        self,
        backend: Backend,
        instance: Instance,
        outbox: ResponseQueue,
        decoupled: bool,
        loop: asyncio.AbstractEventLoop,
        finished: Callable[["InstanceThread", Batch], None],
        policy: Mapping[str, str] = {},
    ) -> None:
        """`policy` is the instance's host policy."""
        self.instance = instance
        self._backend = backend
        self._outbox = outbox
        self._hold = not decoupled
        self.alone = True
        """The model has no other instance."""
        self._loop = loop
        self._finished = finished
        self._policy = policy
        self._batches: queue.SimpleQueue[Batch | SequenceId | None] = queue.SimpleQueue()
        self._tells_ends = type(backend).sequence_finalize is not Backend.sequence_finalize
        self._portable = self._pauses = False
        self._short_runs = self._mean_ns = 0
        self._wanted_runs = _SHORT_RUNS
        self._executing = threading.Lock()  # on the loop; keeps the instance until it is done
        self._loaded = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=instance.name, daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the thread can take batches."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to load and warm up, in the thread that will execute (frameworks keep state per thread)."""
        self._thread.start()

    def wait_loaded(self) -> None:
        """Wait for the load.

        Raises:
            Exception: what the backend's `instance_initialize`, or a warm-up request, raised.
        """
        self._loaded.wait()
        if self._error is not None:
            raise self._error

    @property
    def on_loop(self) -> bool:
        """Whether the next batch will execute on the loop."""
        return self._portable and self._short_runs >= self._wanted_runs and (self.alone or not self._pauses)

    @property
    def takes_next(self) -> bool:
        """Whether it may be handed a batch while it executes another, which no other instance could take."""
        return self.alone and not self.on_loop

    def execute(self, batch: Batch) -> None:
        """Hand over a batch; `finished` is called on the loop when it is done, after this has returned."""
        if self.on_loop:
            if self._pauses:
                self._loop.call_soon(run_suspendable, self._execute_here, batch)
            else:
                self._loop.call_soon(self._execute_here, batch)
        else:
            self._batches.put(batch)

    def _execute_here(self, batch: Batch) -> None:
        with self._executing:
            if not self._portable:  # finalized meanwhile
                return
            self._outbox.hold(not self._pauses)
            try:
                busy_ns = self._execute(batch)
            finally:
                self._outbox.hold(False)
        if busy_ns > _LONG_NS or not (self.alone or self._is_brief(busy_ns)):
            self._short_runs = self._mean_ns = 0
            self._wanted_runs = min(2 * self._wanted_runs, _MOST_SHORT_RUNS)
        self._report(batch)

    def _is_brief(self, busy_ns: int) -> bool:
        """Whether executions on the loop are; on the thread they take longer, waiting for the interpreter."""
        self._mean_ns += (min(busy_ns, _SHORT_NS) - self._mean_ns) // 16
        return self._mean_ns < _BRIEF_NS

    def leave(self) -> None:
        """The instance has executed its last batch; on the loop."""

    def end_sequence(self, sequence_id: SequenceId) -> None:
        """Tell the backend, if it wants to know, that a sequence is over: before the batches to come."""
        if self._tells_ends:
            self._batches.put(sequence_id)

    def stop(self, timeout: float | None) -> None:
        """Unload once the current batch is done."""
        self._batches.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            host_policy.apply(self._policy)
            self._backend.instance_initialize(self.instance)
        except BaseException as error:
            self._error = error
            self._loaded.set()
            return
        try:
            self._warm_up()
            self._portable = self._is_portable()
            self._pauses = self._portable and self._backend.instance_pauses(self.instance)
            self._loaded.set()
            self._serve()
        except BaseException as error:
            self._error = error
        self._finalize()
        self._loaded.set()

    def _is_portable(self) -> bool:
        """Not with sequences: the thread is told of their ends, and the loop would overtake it."""
        sequences = self.instance.model.config.HasField("sequence_batching")
        return self._hold and not sequences and self._backend.instance_portable(self.instance)

    def _warm_up(self) -> None:
        warm_up(self._backend, self.instance)

    def _serve(self) -> None:
        self._outbox.hold(self._hold)
        while (batch := self._batches.get()) is not None:
            if isinstance(batch, Batch):
                self._execute(batch)
                self._tell(batch)
            else:
                self.instance.catch_up()
                self._finalize_sequence(batch)
            del batch  # its tensors must not live until the next one comes
        self.instance.catch_up()

    def _tell(self, batch: Batch) -> None:
        """Report a batch; if the next one is here, when its inputs are in place.

        Answers wake clients and processes whose copying of new requests would slow the joining of the inputs.
        """
        report = partial(self._loop.call_soon_threadsafe, self._report, batch)
        if self._backend.begins_compute and not self._batches.empty():
            self.instance.put_off = report
        else:
            report()

    def _finalize_sequence(self, sequence_id: SequenceId) -> None:
        try:
            self._backend.sequence_finalize(self.instance, sequence_id)
        except Exception:
            logger.exception("ending sequence %s on instance %s", sequence_id, self.instance.name)

    def _finalize(self) -> None:
        with self._executing:
            self._portable = False
        try:
            self._backend.instance_finalize(self.instance)
        except Exception:
            logger.exception("finalizing instance %s", self.instance.name)

    def _report(self, batch: Batch) -> None:
        if batch.end_ns - batch.start_ns > _LONG_NS:  # it shall not idle while responses are written
            self._finished(self, batch)
            self._outbox.flush()
        else:
            self._outbox.flush()
            self._finished(self, batch)

    def _execute(self, batch: Batch) -> int:
        """Returns the nanoseconds that it has kept its thread."""
        instance = self.instance
        instance.compute_start_ns = instance.compute_end_ns = 0
        waited_ns = waited.ns if self._pauses else 0
        batch.start_ns = time.monotonic_ns()
        try:
            self._backend.instance_execute(instance, batch.requests)
        except InferError as error:
            _fail(batch.requests, Failure(error.code, error.message, FailureReason.BACKEND))
        except BaseException as error:  # SystemExit too: a model that calls exit() ends a batch, no thread
            logger.exception("executing a batch on instance %s", instance.name)
            text = str(error) or repr(error)
            _fail(batch.requests, Failure(ErrorCode.INTERNAL, text, FailureReason.BACKEND))
        if instance.put_off is not None:
            instance.catch_up()
        batch.end_ns = time.monotonic_ns()
        busy_ns = batch.end_ns - batch.start_ns
        if self._pauses:
            busy_ns -= waited.ns - waited_ns
        self._count_run(busy_ns)
        batch.infer_start_ns = instance.compute_start_ns or batch.start_ns
        batch.infer_end_ns = instance.compute_end_ns or batch.end_ns
        for pending in batch.requests:
            if pending.infer.trace:
                pending.computed = (batch.start_ns, batch.infer_start_ns, batch.infer_end_ns, batch.end_ns)
            if not pending.answered:
                self._check_unanswered(pending)
        return busy_ns

    def _count_run(self, took_ns: int) -> None:
        """Note an execution; one that was interrupted by chance does not undo all that were short."""
        if took_ns < _SHORT_NS:
            self._short_runs = min(self._short_runs + 1, 4 * self._wanted_runs)
        else:
            self._short_runs = max(self._short_runs - self._wanted_runs, 0)

    def _check_unanswered(self, pending: QueuedRequest) -> None:
        """Answer a request that nobody else will; a decoupled model may do so from a thread of its own."""
        text = ""
        if pending.rescheduled:
            text = "" if pending.may_reschedule else RESCHEDULED
        elif self._hold and pending.abandoned:
            text = UNANSWERED
        if text:
            message = text.format(self.instance.name)
            pending.fail(Failure(ErrorCode.INTERNAL, message, FailureReason.BACKEND))


def _fail(requests: list[QueuedRequest], failure: Failure) -> None:
    for pending in requests:
        pending.fail(failure)
