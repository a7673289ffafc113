"""Executes batches of one instance on the event loop of its replica instead of on the instance's thread.

The only module of this folder that `deployments.execution` imports. See docs/develop/event_loop.md.
"""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from time import monotonic_ns
from typing import Final, Generic, Protocol, TypeVar

from app.transport.loops.borrowable import runs_on_own_thread
from app.transport.loops.reads import call_after_read
from app.transport.loops.suspension import run_suspendable, wait_time
from app.transport.loops.watchdog import LoopWatchdog
from backends.base import Backend, Instance
from backends.parameters import parse_boolean
from deployments.event_loop_execution.policy import TURN_NS, ExecutionHistory, may_execute_on_loop

BatchT = TypeVar("BatchT")

_SETTING: Final = "event-loop"


def is_eligible(backend: Backend, instance: Instance) -> bool:
    """Whether an instance may ever execute on the event loop.

    Raises:
        InferError: see `needs_thread`.
    """
    return not needs_thread(instance) and backend.runs_on_event_loop(instance)


def needs_thread(instance: Instance) -> bool:
    """Whether all executions of an instance belong on its thread, whatever its backend.

    Raises:
        InferError: INVALID_ARG for a `--backend-config=<backend>,event-loop` that is no boolean.
    """
    model = instance.model
    if not parse_boolean(_SETTING, model.backend_config.get(_SETTING, "true")):
        return True
    # Responses of a decoupled model must not wait for the end of its execution, and the end of a sequence is
    # reported in the thread's queue, where a batch on the loop would overtake it.
    decoupled = model.config.model_transaction_policy.decoupled
    return bool(decoupled or model.config.HasField("sequence_batching"))


class Holds(Protocol):
    """Passes responses on when it is told to, as long as they are `held`."""

    held: bool


class EventLoopExecutor(Generic[BatchT]):
    """Decides whether the next batch of an eligible instance executes on the loop, and executes it there.

    Args:
        loop: the data-plane loop of the replica.
        execute: executes a batch; calls `record` with its duration.
        report: reports an executed batch, whereupon the next one may be scheduled.
        responses: is told to hold responses until the report.
        may_call_models: executions may wait for responses of other models.
        watchdog: that of the replica.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        execute: Callable[[BatchT], None],
        report: Callable[[BatchT], None],
        responses: Holds,
        may_call_models: bool,
        watchdog: LoopWatchdog,
    ) -> None:
        self._loop = loop
        self._execute = execute
        self._report = report
        self._responses = responses
        self._may_call_models = may_call_models
        self._watchdog = watchdog
        self._history = ExecutionHistory()
        self._running = False
        self._closed = False
        self._next: BatchT | None = None
        self._reporting = False
        self._turn_ends_ns = 0
        self._idle = threading.Lock()  # held by an execution on the loop, also while it is suspended
        wait_time.collect()  # of warm-up requests

    def is_next(self, is_only_instance: bool) -> bool:
        """Whether the next batch is to be scheduled here, rather than on the instance's thread."""
        if self._watchdog.tripped:
            return False
        return may_execute_on_loop(self._history, self._may_call_models, is_only_instance)

    def schedule(self, batch: BatchT) -> None:
        """Execute a batch on the loop, after the caller has returned."""
        if self._reporting and monotonic_ns() < self._turn_ends_ns:
            self._next = batch
        elif not self._may_call_models:
            call_after_read(self._loop, partial(self._run, batch))
        elif runs_on_own_thread(self._loop):
            self._loop.call_soon(run_suspendable, self._watchdog, self._run, batch)
        else:  # what is suspended can be resumed only on the thread that it began on
            self._loop.call_soon_threadsafe(run_suspendable, self._watchdog, self._run, batch)

    def run(self, batch: BatchT) -> None:
        """Execute a batch now, or until it is suspended; the caller is a callback of the loop's own."""
        if not self._may_call_models:
            self._run(batch)
        elif runs_on_own_thread(self._loop):
            run_suspendable(self._watchdog, self._run, batch)
        else:
            self.schedule(batch)

    def record(self, took_ns: int, is_only_instance: bool) -> None:
        """Record an execution, here or on the instance's thread; waiting for other models does not count."""
        busy_ns = took_ns - wait_time.collect() if self._may_call_models else took_ns
        self._history.record(busy_ns)
        if self._running:
            self._history.record_on_loop(busy_ns, is_only_instance)

    def close(self) -> None:
        """Wait for the execution on the loop and drop those that are scheduled; not on the loop."""
        with self._idle:
            self._closed = True

    def _run(self, batch: BatchT) -> None:
        """Execute a batch and those that follow within `TURN_NS`; their responses are written together."""
        # The stack of an execution that may be suspended is its own: no other one may run on it.
        self._turn_ends_ns = 0 if self._may_call_models else monotonic_ns() + TURN_NS
        following: BatchT | None = batch
        while following is not None and self._execute_one(following):
            self._next, self._reporting = None, True
            try:
                self._report(following)
            except BaseException:
                if self._next is not None:  # has a turn of its own
                    self._loop.call_soon(self._run, self._next)
                raise
            finally:
                self._reporting = False
            following = self._next

    def _execute_one(self, batch: BatchT) -> bool:
        """Execute a batch; return whether it was, which it is not after the end."""
        with self._idle:
            if self._closed:
                return False
            self._running = True
            # While an execution is suspended, the loop sends responses of other requests at once.
            self._responses.held = not self._may_call_models
            self._watchdog.enter()
            try:
                self._execute(batch)
            finally:
                self._watchdog.leave()
                self._responses.held = False
                self._running = False
        return True
