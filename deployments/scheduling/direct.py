"""The default scheduler: each request is an execution of its own, first come first served."""

import time

from deployments.execution.instance_thread import Batch
from deployments.scheduling.base import Scheduler


class DirectScheduler(Scheduler):
    """Used when the configuration names no scheduler."""

    def release(self) -> None:
        while self._free and self._queue.tidy(1):
            pending = self._queue.popleft()
            pending.dispatch_ns = time.monotonic_ns()
            self._free.pop().execute(Batch([pending], pending.rows))
