"""The default scheduler: each request is an execution of its own, first come first served."""

import time
from collections import deque

from deployments.instances import Batch
from deployments.scheduling.base import QUEUE_FULL, Scheduler, is_stale
from deployments.scheduling.pending import Pending
from deployments.statistics import Statistics


class DirectScheduler(Scheduler):
    """Used when the configuration names no scheduler."""

    def __init__(self, statistics: Statistics, max_pending: int) -> None:
        super().__init__(statistics, max_pending)
        self._queue: deque[Pending] = deque()

    @property
    def pending(self) -> int:
        return len(self._queue)

    def submit(self, pending: Pending) -> None:
        if len(self._queue) >= self._max_pending:
            raise QUEUE_FULL
        self._queue.append(pending)
        self.release()

    def release(self) -> None:
        while self._free and self._queue:
            pending = self._queue.popleft()
            if not is_stale(pending, time.monotonic()):
                pending.dispatch_ns = time.monotonic_ns()
                self._free.pop().execute(Batch([pending], pending.rows))
