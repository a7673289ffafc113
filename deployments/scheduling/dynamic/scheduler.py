"""The dynamic batcher: a queue that releases full, ordered batches.

A model's only instance, if its executions are long, is handed its next batch while it executes, as soon as
that batch is full: waiting could not change it. An instance that waits for the loop to wake up, and on a busy
machine for a processor, idles 2 to 3 ms between two batches.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from app.core.observability.statistics import Statistics
from app.transport.loops.reads import call_after_read
from backends.strategy import BatchStrategy
from deployments.execution.instance_thread import Batch, InstanceThread
from deployments.execution.queued_request import QueuedRequest
from deployments.scheduling.alarm import Alarm
from deployments.scheduling.base import DirectScheduler
from deployments.scheduling.dynamic.batch_policy import BatchDecision, BatchPolicy, decide_batch
from deployments.scheduling.dynamic.ordering import ResponseOrder
from deployments.scheduling.dynamic.serve_batch import MIN_EXECUTION_NS, ServeBatch
from deployments.scheduling.queue import RequestQueue
from deployments.scheduling.shape_key import ShapeKey

logger = logging.getLogger(__name__)

GATHERED_FROM_NS: Final = 500_000
"""Executions at least this long are worth an iteration of the loop, to begin with more requests."""

PREPARED_FROM_NS: Final = 10_000_000
"""After executions at least this long the next full batch is handed over before the instance is free."""

_NEVER: Final = sys.maxsize


class DynamicScheduler(DirectScheduler):
    """Used when the configuration has `dynamic_batching`, and batches or a queue policy.

    Args:
        policy: sizes and delay.
        serve_batch: executes batches when executions are long.
        shape_key: tells which requests may share a batch; None when all may.
        strategy: decides on top of the policy which requests share a batch.
        ordered: 0, or responses leave in order, and no request starts while so many wait for an earlier one.
        start_threshold: queued requests without which nothing is released at first (a hook for tests).
    """

    def __init__(
        self,
        statistics: Statistics,
        queue: RequestQueue,
        policy: BatchPolicy,
        serve_batch: ServeBatch,
        *,
        shape_key: ShapeKey | None = None,
        strategy: BatchStrategy | None = None,
        ordered: int = 0,
        start_threshold: int = 0,
    ) -> None:
        super().__init__(statistics, queue)
        self._policy = policy
        self._strategy = strategy
        self._order = ResponseOrder(ordered, self.release) if ordered else None
        self._start_threshold = start_threshold
        self._shape_key = shape_key
        self._alarm = Alarm(self._wake)
        self._serve_batch = serve_batch
        self._execution_ns = 0
        self._executes_on_loop = False
        self._gathering = False
        as_arrived = strategy is None and not ordered and not start_threshold and queue.in_order
        # A batch of one gains nothing by it, and would leave its queue too early.
        self._may_prepare = as_arrived and policy.max_rows > 1
        self._prepare_at = _NEVER  # queued requests from which on a busy instance may get its next batch
        self._prepared: Batch | None = None
        self._waiting: list[Batch] = []  # of instances that may wait, the oldest first
        queue.wake_by = self._alarm.set

    def close(self) -> None:
        if self._strategy is not None:
            self._strategy.batcher_finalize()

    def schedule(self, request: QueuedRequest) -> None:
        if self._shape_key is not None:
            request.shapes = self._shape_key(request.infer)
        queue = self._queue
        queue.append(request)
        if self._gathering and queue.requests < self._policy.max_rows:
            return
        if self._free or queue.requests >= self._prepare_at:
            self.release()

    def finished(self, instance: InstanceThread, batch: Batch) -> None:
        self._execution_ns = batch.end_ns - batch.start_ns
        self._executes_on_loop = instance.executes_on_loop
        self._statistics.record_release(batch.release)
        if batch.done is not None and not batch.done.done():
            batch.done.set_result(None)
        if instance.may_wait:
            if batch in self._waiting:  # it was cancelled
                self._waiting.remove(batch)
            for waiting in self._waiting:  # before this instance forms a batch of what is queued
                self._refill(waiting)
        super().finished(instance, batch)

    def _take_back(self, instance: InstanceThread) -> None:
        """Take an instance back, unless it has begun with the batch that was prepared for it."""
        prepares = (
            self._may_prepare
            and self._execution_ns >= PREPARED_FROM_NS
            and instance.accepts_prefetch
            and self._instances.stays(instance)
        )
        self._prepare_at = self._policy.max_rows if prepares else _NEVER
        self.admission.lead = 2 if prepares and not self._queue.timed else 1
        if self._instances.end(instance) and self._prepared is not None:
            _set_dispatch_time(self._prepared.requests, time.monotonic_ns())
            self._prepared = None

    def release(self) -> None:
        """Release now or, after a long execution, once the loop has read what has arrived already."""
        # The callers of a finished batch send their next requests one after the other: the first of these
        # must not have the instance for itself. Where the loop itself executes, an early start gains nothing.
        if not self._queue.requests:
            return
        at_once = self._execution_ns < GATHERED_FROM_NS and not self._executes_on_loop
        if at_once or self._queue.requests >= self._policy.max_rows:
            self._release_now()
        elif not self._gathering:
            self._gathering = True
            call_after_read(asyncio.get_running_loop(), self._release_gathered)

    def _release_gathered(self) -> None:
        self._gathering = False
        self._release_now(at_once=True)

    def _release_now(self, at_once: bool = False) -> None:
        """Release what can be; with `at_once`, this is a callback of the loop's own, which may execute."""
        queue, rows = self._queue, self._policy.max_rows
        while self._free and queue.tidy(rows):
            if (self._start_threshold or self._order) and self._must_wait():
                return
            head, now = queue.head(rows), time.monotonic_ns()
            decision = self._decide(head, now)
            if not decision.size:
                self._alarm.set(decision.wait_until_ns)
                return
            instance = self._instances.start()
            batch = self._dequeue(decision, now)
            if at_once and not (self._free and queue.requests):
                self._start(instance, batch, at_once=True)
                break  # if it is over, its end has released or gathered what followed
            self._start(instance, batch)
        if queue.requests >= self._prepare_at and not self._free:
            self._prepare()

    def _dequeue(self, decision: BatchDecision, now_ns: int) -> Batch:
        size, rows, _, reason = decision
        batch = Batch(self._queue.take(size), rows, reason)
        if self._queue.requests:
            self.admission.batch.add(size)
        _set_dispatch_time(batch.requests, now_ns)
        return batch

    def begins(self, batch: Batch) -> None:
        if batch in self._waiting:
            self._waiting.remove(batch)
            self._refill(batch)

    def _refill(self, batch: Batch) -> None:
        """Add queued requests to a batch that waits, while it has room."""
        queue, rows = self._queue, self._policy.max_rows
        if batch.rows >= rows or not queue.tidy(rows) or (self._order is not None and self._order.full):
            return
        now, size = time.monotonic_ns(), len(batch.requests)
        decision = self._decide([*batch.requests, *islice(queue.head(rows), rows)], now)
        if decision.size > size:
            added = queue.take(decision.size - size)
            _set_dispatch_time(added, now)
            self._track(added)
            batch.requests += added
            batch.rows, batch.release = decision.rows, decision.reason

    def _prepare(self) -> None:
        """Hand the busy instance its next batch if that is full and none of its deadlines can end first."""
        queue, rows = self._queue, self._policy.max_rows
        if queue.timed or not queue.tidy(rows):
            return
        now = time.monotonic_ns()
        decision = decide_batch(self._policy, queue.head(rows), now)
        instance = self._instances.executing()
        if instance is not None and (decision.rows == rows or decision.reason == "full"):
            self._prepare_at = _NEVER
            self._prepared = self._dequeue(decision, now)
            self._instances.prepare(instance)
            self._serve_batch.start(instance, self._prepared)

    def _must_wait(self) -> bool:
        if self._queue.requests >= self._start_threshold:
            self._start_threshold = 0
        return bool(self._start_threshold) or (self._order is not None and self._order.full)

    def _decide(self, queue: Sequence[QueuedRequest], now_ns: int) -> BatchDecision:
        strategy = self._strategy
        if strategy is None:
            return decide_batch(self._policy, queue, now_ns)
        record = strategy.batch_initialize()
        try:
            return decide_batch(self._policy, queue, now_ns, partial(_includes, strategy, record))
        finally:
            strategy.batch_finalize(record)

    def _start(self, instance: InstanceThread, batch: Batch, at_once: bool = False) -> None:
        self._track(batch.requests)
        if instance.may_wait:
            self._waiting.append(batch)
        if len(batch.requests) == 1 or self._execution_ns < MIN_EXECUTION_NS:
            (instance.execute_at_once if at_once else instance.execute)(batch)
        else:
            self._serve_batch.start(instance, batch)

    def _track(self, requests: Sequence[QueuedRequest]) -> None:
        if self._order is not None:
            for request in requests:
                self._order.track(request)

    def _wake(self) -> None:
        """Examine the queue again."""
        self._queue.tidy(0)
        self._release_now()
        if expiry_ns := self._queue.next_expiry_ns:
            self._alarm.set(expiry_ns)


def _set_dispatch_time(requests: Sequence[QueuedRequest], now_ns: int) -> None:
    for request in requests:
        request.dispatch_ns = now_ns


def _includes(strategy: BatchStrategy, record: Any, request: QueuedRequest) -> bool:
    try:
        return strategy.include_request(request, record)
    except Exception:
        logger.exception("a custom batching strategy failed")
        return False
