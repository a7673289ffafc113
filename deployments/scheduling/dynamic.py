"""The dynamic batcher: a queue that releases full, ordered batches to `@serve.batch` execution.

`@serve.batch` alone forms batches while the instance is busy, so they stay small under load, and it sends an
item that does not fit to the back of its queue. The queue in front makes batches full and ordered; what it
releases goes through `@serve.batch` as one item whose size is its rows, so that Serve's own batch metrics
are true. A lone request goes straight to its instance: `@serve.batch` would add 67 us to it.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import islice

from deployments.instances import Batch, InstanceThread
from deployments.scheduling.base import QUEUE_FULL, Scheduler, is_stale
from deployments.scheduling.formation import BatchPolicy, form
from deployments.scheduling.pending import Pending
from deployments.statistics import Statistics

Execute = Callable[[list[tuple[InstanceThread, Batch]]], Awaitable[list[None]]]
ServeBatched = Callable[[tuple[InstanceThread, Batch]], Awaitable[None]]


class DynamicScheduler(Scheduler):
    """Used when the configuration has `dynamic_batching` and a max_batch_size above 1.

    Args:
        policy: sizes and delay.
        max_queue: `default_queue_policy.max_queue_size` (0 = no limit of its own).
        batched: makes the `@serve.batch`-decorated form of an executor.
    """

    def __init__(
        self,
        statistics: Statistics,
        max_pending: int,
        policy: BatchPolicy,
        max_queue: int,
        batched: Callable[[Execute], ServeBatched],
    ) -> None:
        super().__init__(statistics, min(max_pending, max_queue) if max_queue else max_pending)
        self._policy = policy
        self._queue: deque[Pending] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._batched = batched(_execute)
        self._running: set[asyncio.Task[None]] = set()

    @property
    def pending(self) -> int:
        return len(self._queue)

    def submit(self, pending: Pending) -> None:
        if len(self._queue) >= self._max_pending:
            raise QUEUE_FULL
        self._queue.append(pending)
        if self._free:
            self.release()

    def release(self) -> None:
        while self._free and self._drop_stale():
            formation = form(self._policy, self._queue, time.monotonic_ns())
            if not formation.size:
                self._wait(formation.wait_until_ns)
                return
            requests = [self._queue.popleft() for _ in range(formation.size)]
            self._start(Batch(requests, formation.rows, formation.reason))

    def _drop_stale(self) -> bool:
        """Answer what no longer needs executing among the requests that could join; True if any is left."""
        now = time.monotonic()
        queue = self._queue
        head = list(islice(queue, self._policy.max_rows))
        if any(p.answered or p.infer.deadline for p in head):
            for _ in head:
                queue.popleft()
            queue.extendleft(reversed([p for p in head if not is_stale(p, now)]))
        return bool(queue)

    def _start(self, batch: Batch) -> None:
        now = time.monotonic_ns()
        for pending in batch.requests:
            pending.dispatch_ns = now
        instance = self._free.pop()
        if len(batch.requests) == 1:
            instance.execute(batch)
            return
        task = asyncio.get_running_loop().create_task(self._execute_batched(instance, batch))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _execute_batched(self, instance: InstanceThread, batch: Batch) -> None:
        batch.done = asyncio.get_running_loop().create_future()
        await self._batched((instance, batch))

    def _wait(self, until_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay = max(0, until_ns - time.monotonic_ns()) / 1e9
        self._timer = asyncio.get_running_loop().call_later(delay, self.release)


async def _execute(items: list[tuple[InstanceThread, Batch]]) -> list[None]:
    for instance, batch in items:
        instance.execute(batch)
    await asyncio.gather(*(batch.done for _, batch in items if batch.done is not None))
    return [None] * len(items)
