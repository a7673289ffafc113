"""An instance that executes when the rate limiter gives it a turn."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from backends.base import Backend, Instance
from deployments.event_loop_execution.watchdog import LoopWatchdog
from deployments.execution.instance_thread import Batch, InstanceThread
from deployments.execution.queued_request import CANCELLED, QueuedRequest, ResponseQueue
from deployments.rate_limiting.client import Permits

_PATIENCE_S: Final = 0.001


class LimitedInstance(InstanceThread):
    """Takes a batch as any instance does, and hands it to its thread when it has a turn.

    Args:
        turns: what the arbiter gives it.
        expects: whether more requests are queued.
    """

    def __init__(
        self,
        backend: Backend,
        instance: Instance,
        outbox: ResponseQueue,
        decoupled: bool,
        loop: asyncio.AbstractEventLoop,
        finished: Callable[[InstanceThread, Batch], None],
        watchdog: LoopWatchdog,
        policy: Mapping[str, str],
        turns: Permits,
        expects: Callable[[], bool],
    ) -> None:
        super().__init__(backend, instance, outbox, decoupled, loop, finished, watchdog, policy)
        self._turns = turns
        self._expects = expects
        self._next: Batch | None = None
        self._reporting = False
        self._patience: asyncio.TimerHandle | None = None

    @property
    def accepts_prefetch(self) -> bool:
        """Never: each batch has to wait for its turn."""
        return False

    def execute(self, batch: Batch) -> None:
        self._next = batch
        if self._patience is not None:
            self._patience.cancel()
            self._pass_on()
        elif not self._reporting:
            self._turns.ask(self._begin)

    def cancel(self, pending: QueuedRequest) -> None:
        """Give up a batch that waits for its turn when nobody wants it any more."""
        batch = self._next
        if batch is not None and pending in batch.requests and not _wanted(batch):
            self._turns.release()
            self._drop(batch)

    def on_removed(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._turns.leave()

    def _warm_up(self) -> None:
        """Warm-up executions are one turn; on the instance's thread."""
        if not self.instance.model.config.model_warmup:
            return
        granted = threading.Event()
        self._loop.call_soon_threadsafe(self._turns.ask, granted.set)
        granted.wait()
        try:
            super()._warm_up()
        finally:
            self._loop.call_soon_threadsafe(self._turns.release)

    def _report(self, batch: Batch) -> None:
        """Give the turn back, and ask for another at once where there is more to do.

        The batcher may take a moment to form the next batch. Others wait for the turn that long: given to
        them at once, turns would alternate whatever the priorities say.
        """
        self._reporting = True
        super()._report(batch)
        self._reporting = False
        if self._next is None and self._expects():
            self._patience = self._loop.call_later(_PATIENCE_S, self._pass_on)
        else:
            self._pass_on()

    def _pass_on(self) -> None:
        self._patience = None
        self._turns.release()
        if self._next is not None:
            self._turns.ask(self._begin)

    def _begin(self) -> None:
        batch = self._next
        assert batch is not None
        if not _wanted(batch):
            self._turns.release()
            self._drop(batch)
            return
        self._next = None
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
    """Whether to execute it; what one of a sequence did not, later ones would lack."""
    return any(type(pending) is not QueuedRequest or not pending.cancelled for pending in batch.requests)
