"""The dynamic batcher: a queue that releases full, ordered batches to `@serve.batch` execution.

`@serve.batch` alone forms batches while the instance is busy, so they stay small under load, and it sends an
item that does not fit to the back of its queue. The queue in front makes batches full and ordered; what it
releases goes through `@serve.batch` as one item whose size is its rows, so that Serve's own batch metrics
are true. A lone request goes straight to its instance, and so does a batch of a model whose last execution
was short: `@serve.batch` costs a batch 100 us, as much as the whole execution of a small model.

A model's only instance, if its executions are long, is handed its next batch while it executes, as soon as
that batch is full: waiting could not change it. An instance that waits for the loop to wake up, and on a busy
machine for a processor, idles 2 to 3 ms between two batches.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from ray import serve

from app.core.statistics import Statistics
from backends.strategy import BatchStrategy
from deployments.execution.instance_thread import Batch, InstanceThread
from deployments.execution.queued_request import QueuedRequest
from deployments.scheduling.base import NEVER, Scheduler
from deployments.scheduling.dynamic.batch_policy import BatchDecision, BatchPolicy, decide_batch
from deployments.scheduling.dynamic.ordering import ResponseOrder
from deployments.scheduling.queue import RequestQueue

logger = logging.getLogger(__name__)

Item = tuple[InstanceThread, Batch]
Execute = Callable[[list[Item]], Awaitable[list[None]]]
ServeBatched = Callable[[Item], Awaitable[None]]
MakeBatched = Callable[[Execute, int, int], ServeBatched]
"""Makes the batched form of an executor, of at most so many rows and so many batches at a time."""


def serve_batched(execute: Execute, max_rows: int, concurrent: int) -> ServeBatched:
    """The `@serve.batch`-decorated form of an executor; to be called inside a replica only."""
    decorated: Any = serve.batch(
        max_batch_size=max_rows,
        batch_wait_timeout_s=0,
        max_concurrent_batches=concurrent,
        batch_size_fn=lambda items: sum(batch.rows for _, batch in items),
    )(cast(Any, execute))
    return cast(ServeBatched, decorated)


GATHERED_FROM_NS = 500_000
"""Executions at least this long are worth a turn of the loop, to begin with more requests."""

BATCHED_FROM_NS = 2_000_000
"""Executions at least this long go through `@serve.batch`, whose cost is then under 5%."""

PREPARED_FROM_NS = 10_000_000
"""After executions at least this long the next full batch is handed over before the instance is free."""


class DynamicScheduler(Scheduler):
    """Used when the configuration has `dynamic_batching` and a max_batch_size above 1.

    Args:
        policy: sizes and delay.
        batched: the `@serve.batch`-decorated form of an executor (`execute`).
        strategy: decides on top of the policy which requests share a batch.
        ordered: 0, or responses leave in order, and no request starts while so many wait for an earlier one.
        hold: release nothing before so many requests are queued, once (a hook for tests).
    """

    def __init__(
        self,
        statistics: Statistics,
        queue: RequestQueue,
        policy: BatchPolicy,
        batched: ServeBatched,
        *,
        strategy: BatchStrategy | None = None,
        ordered: int = 0,
        hold: int = 0,
    ) -> None:
        super().__init__(statistics, queue)
        self._policy = policy
        self._strategy = strategy
        self._order = ResponseOrder(ordered, self.release) if ordered else None
        self._hold = hold
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._batched = batched
        self._running: set[asyncio.Task[None]] = set()
        self._execution_ns = 0
        self._executes_on_loop = False
        self._gathering = False
        self._may_prepare = strategy is None and not ordered and not hold and queue.in_order
        self._busy: InstanceThread | None = None
        self._prepared: Batch | None = None
        queue.wake_by = self._wake_by

    def close(self) -> None:
        if self._strategy is not None:
            self._strategy.batcher_finalize()

    def finished(self, instance: InstanceThread, batch: Batch) -> None:
        self._execution_ns = batch.end_ns - batch.start_ns
        self._executes_on_loop = instance.executes_on_loop
        self._statistics.record_release(batch.release)
        super().finished(instance, batch)

    def _take_back(self, instance: InstanceThread) -> None:
        """Take an instance back, unless it has begun with the batch that was prepared for it."""
        wanted = (
            self._may_prepare
            and self._execution_ns >= PREPARED_FROM_NS
            and instance.accepts_prefetch
            and instance not in self._leaving
        )
        self._prepare_at = self._policy.max_rows if wanted else NEVER
        if self._prepared is None:
            super()._take_back(instance)
            return
        _dispatched(self._prepared)
        self._prepared = None

    def release(self) -> None:
        """Release now or, after a long execution, when the loop has taken in what has arrived already.

        The callers of a finished batch ask again one after the other: the first of them must not have the
        instance for itself. Nor where the loop itself executes: nothing is won by beginning at once.
        """
        at_once = self._execution_ns < GATHERED_FROM_NS and not self._executes_on_loop
        if at_once or len(self._queue) >= self._policy.max_rows:
            self._release()
        elif not self._gathering and self._queue:
            self._gathering = True
            asyncio.get_running_loop().call_soon(self._gathered)

    def _gathered(self) -> None:
        self._gathering = False
        self._release()

    def _release(self) -> None:
        queue, rows = self._queue, self._policy.max_rows
        while self._free and queue.tidy(rows):
            if (self._hold or self._order) and self._must_wait():
                return
            head, now = queue.head(rows), time.monotonic_ns()
            formation = (
                decide_batch(self._policy, head, now) if self._strategy is None else self._form(head, now)
            )
            if not formation.size:
                self._wake_by(formation.wait_until_ns)
                return
            self._start(self._free.pop(), self._take(formation))
        if len(queue) >= self._prepare_at and not self._free:
            self._prepare()

    def _take(self, formation: BatchDecision) -> Batch:
        requests = [self._queue.popleft() for _ in range(formation.size)]
        batch = Batch(requests, formation.rows, formation.reason)
        _dispatched(batch)
        return batch

    def _prepare(self) -> None:
        """Hand the busy instance a batch that waiting cannot change: full, and no deadline may end before."""
        queue, rows = self._queue, self._policy.max_rows
        if queue.timed or not queue.tidy(rows):
            return
        formation = decide_batch(self._policy, queue.head(rows), time.monotonic_ns())
        full = formation.rows == rows or formation.reason == "full"
        if full and self._busy is not None:
            self._prepare_at = NEVER
            self._prepared = self._take(formation)
            self._start_batched(self._busy, self._prepared)

    def _must_wait(self) -> bool:
        if len(self._queue) >= self._hold:
            self._hold = 0
        return bool(self._hold) or (self._order is not None and self._order.full)

    def _form(self, queue: Sequence[QueuedRequest], now_ns: int) -> BatchDecision:
        strategy = self._strategy
        assert strategy is not None
        record = strategy.batch_initialize()
        try:
            return decide_batch(self._policy, queue, now_ns, lambda p: _includes(strategy, p, record))
        finally:
            strategy.batch_finalize(record)

    def _start(self, instance: InstanceThread, batch: Batch) -> None:
        if self._order is not None:
            for pending in batch.requests:
                self._order.track(pending)
        self._busy = instance
        if len(batch.requests) == 1 or self._execution_ns < BATCHED_FROM_NS:
            instance.execute(batch)
        else:
            self._start_batched(instance, batch)

    def _start_batched(self, instance: InstanceThread, batch: Batch) -> None:
        task = asyncio.get_running_loop().create_task(self._execute_batched(instance, batch))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _execute_batched(self, instance: InstanceThread, batch: Batch) -> None:
        try:
            await self._batched((instance, batch))
        except Exception:
            logger.exception("@serve.batch failed")
            if batch.done is None:  # the instance has not got it: no reason to lose its requests
                instance.execute(batch)
        else:
            batch.requests = []  # Serve remembers the batch until the next one comes

    def _wake_by(self, when_ns: int) -> None:
        """Look at the queue again at `when_ns`, or earlier."""
        if self._timer is not None:
            if self._timer_ns <= when_ns:
                return
            self._timer.cancel()
        self._timer_ns = when_ns
        delay = max(0, when_ns - time.monotonic_ns()) / 1e9
        self._timer = asyncio.get_running_loop().call_later(delay, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._queue.tidy(0)
        self._release()
        if expiry_ns := self._queue.next_expiry_ns:
            self._wake_by(expiry_ns)


def _dispatched(batch: Batch) -> None:
    now = time.monotonic_ns()
    for pending in batch.requests:
        pending.dispatch_ns = now


def _includes(strategy: BatchStrategy, pending: QueuedRequest, record: Any) -> bool:
    try:
        return strategy.include_request(pending, record)
    except Exception:
        logger.exception("a custom batching strategy failed")
        return False


async def execute(items: list[Item]) -> list[None]:
    """What `@serve.batch` decorates: hand batches to their instances and wait until they are done."""
    waiting = []
    for instance, batch in items:
        batch.done = asyncio.get_running_loop().create_future()
        waiting.append(batch.done)
        instance.execute(batch)
    await asyncio.gather(*waiting)
    return [None] * len(items)
