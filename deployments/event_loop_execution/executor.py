"""Executes batches of one instance on the event loop of its replica instead of on the instance's thread.

The only module of this folder that `deployments.execution` imports. See docs/event_loop_execution.md.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from backends.base import Backend, Instance
from backends.parameters import parse_boolean
from deployments.event_loop_execution.policy import ExecutionHistory, may_execute_on_loop
from deployments.event_loop_execution.suspension import run_suspendable, wait_time
from deployments.event_loop_execution.watchdog import LoopWatchdog

BatchT = TypeVar("BatchT")

_SETTING: Final = "event-loop"


def is_eligible(backend: Backend, instance: Instance) -> bool:
    """Whether an instance may ever execute on the event loop.

    Raises:
        InferError: INVALID_ARG for a `--backend-config=<backend>,event-loop` that is no boolean.
    """
    model = instance.model
    if not parse_boolean(_SETTING, model.backend_config.get(_SETTING, "true")):
        return False
    # Responses of a decoupled model must not wait for the end of its execution, and the end of a sequence is
    # reported in the thread's queue, where a batch on the loop would overtake it.
    if model.config.model_transaction_policy.decoupled or model.config.HasField("sequence_batching"):
        return False
    return backend.runs_on_event_loop(instance)


class EventLoopExecutor(Generic[BatchT]):
    """Decides whether the next batch of an eligible instance executes on the loop, and executes it there.

    Args:
        loop: the data-plane loop of the replica.
        execute: executes a batch; calls `record` with its duration.
        report: reports an executed batch.
        hold: defers the responses of the calling thread until the report, or ends that.
        may_call_models: executions may wait for responses of other models.
        watchdog: that of the replica.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        execute: Callable[[BatchT], None],
        report: Callable[[BatchT], None],
        hold: Callable[[bool], None],
        may_call_models: bool,
        watchdog: LoopWatchdog,
    ) -> None:
        self._loop = loop
        self._execute = execute
        self._report = report
        self._hold = hold
        self._may_call_models = may_call_models
        self._watchdog = watchdog
        self._history = ExecutionHistory()
        self._running = False
        self._closed = False
        self._idle = threading.Lock()  # held by an execution on the loop, also while it is suspended
        wait_time.collect()  # of warm-up requests

    def is_next(self, is_only_instance: bool) -> bool:
        """Whether the next batch is to be scheduled here, rather than on the instance's thread."""
        if self._watchdog.tripped:
            return False
        return may_execute_on_loop(self._history, self._may_call_models, is_only_instance)

    def schedule(self, batch: BatchT) -> None:
        """Execute a batch on the loop, after the caller has returned."""
        if self._may_call_models:
            self._loop.call_soon(run_suspendable, self._watchdog, self._run, batch)
        else:
            self._loop.call_soon(self._run, batch)

    def run(self, batch: BatchT) -> None:
        """Execute a batch now, or until it is suspended; the caller is a callback of the loop's own."""
        if self._may_call_models:
            run_suspendable(self._watchdog, self._run, batch)
        else:
            self._run(batch)

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
        with self._idle:
            if self._closed:
                return
            self._running = True
            # While an execution is suspended, the loop sends responses of other requests at once.
            self._hold(not self._may_call_models)
            self._watchdog.enter()
            try:
                self._execute(batch)
            finally:
                self._watchdog.leave()
                self._hold(False)
                self._running = False
        self._report(batch)
