"""An instance that executes when the rate limiter grants it a permit."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Final

from app.core.failures import CANCELLED
from app.transport.loops.watchdog import LoopWatchdog
from backends.base import Backend, Instance
from deployments.execution.instance_thread import Batch, InstanceThread
from deployments.execution.queued_request import QueuedRequest, ResponseQueue
from deployments.rate_limiting.client import Permits

_NEXT_BATCH_S: Final = 0.001


class LimitedInstance(InstanceThread):
    """Accepts a batch like any instance, and executes it when it has a permit.

    Args:
        permits: the permits of the instance.
        expects: returns whether more requests are queued.
        begins: is told which batch begins, and may add requests to it.
    """

    may_wait = True

    def __init__(
        self,
        backend: Backend,
        instance: Instance,
        responses: ResponseQueue,
        loop: asyncio.AbstractEventLoop,
        finished: Callable[[InstanceThread, Batch], None],
        watchdog: LoopWatchdog,
        permits: Permits,
        expects: Callable[[], bool],
        begins: Callable[[Batch], None],
    ) -> None:
        super().__init__(backend, instance, responses, loop, finished, watchdog)
        self._permits = permits
        self._expects = expects
        self._begins = begins
        self._next: Batch | None = None
        self._reporting = False
        self._keep_timer: asyncio.TimerHandle | None = None

    @property
    def accepts_prefetch(self) -> bool:
        """False: each batch has to wait for a permit."""
        return False

    def execute(self, batch: Batch) -> None:
        self._next = batch
        if self._keep_timer is not None:
            self._keep_timer.cancel()
            self._pass_on()
        elif not self._reporting:
            self._permits.acquire(self._begin)

    def execute_at_once(self, batch: Batch) -> None:
        self.execute(batch)  # which may have to wait for a permit

    def cancel(self, pending: QueuedRequest) -> None:
        """Drop a waiting batch when all of its requests are cancelled."""
        batch = self._next
        if batch is not None and pending in batch.requests and not _wanted(batch):
            self._permits.release()
            self._drop(batch)

    def on_removed(self) -> None:
        if self._keep_timer is not None:
            self._keep_timer.cancel()
        self._permits.unregister()

    def _warm_up(self) -> None:
        """Execute all warm-up requests with one permit; on the instance's thread."""
        if not self.instance.model.config.model_warmup:
            return
        granted = threading.Event()
        self._loop.call_soon_threadsafe(self._permits.acquire, granted.set)
        granted.wait()
        try:
            super()._warm_up()
        finally:
            self._loop.call_soon_threadsafe(self._permits.release)

    def _report(self, batch: Batch) -> None:
        """Release the permit, and request another at once when there is a next batch.

        The scheduler may need a moment to form that batch, and the permit is kept that long: permits that are
        released at once would alternate between instances whatever their priorities.
        """
        self._reporting = True
        super()._report(batch)
        self._reporting = False
        if self._next is None and self._expects():
            self._keep_timer = self._loop.call_later(_NEXT_BATCH_S, self._pass_on)
        else:
            self._pass_on()

    def _pass_on(self) -> None:
        self._keep_timer = None
        self._permits.release()
        if self._next is not None:
            self._permits.acquire(self._begin)

    def _begin(self) -> None:
        batch = self._next
        assert batch is not None
        if not _wanted(batch):
            self._permits.release()
            self._drop(batch)
            return
        self._next = None
        self._begins(batch)
        now = time.monotonic_ns()
        for pending in batch.requests:
            if type(pending) is QueuedRequest:  # a sequence's counts from its first execution
                pending.dispatch_ns = now  # until now it was queued, as in Triton
        super().execute(batch)

    def _drop(self, batch: Batch) -> None:
        self._next = None
        for pending in batch.requests:
            pending.fail(CANCELLED)
        self._finished(self, batch)


def _wanted(batch: Batch) -> bool:
    """Return whether to execute a batch: later requests of a sequence need even its cancelled ones."""
    return any(type(pending) is not QueuedRequest or not pending.cancelled for pending in batch.requests)
