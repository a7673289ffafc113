"""What every scheduler does: hold requests, give them to instances, account for them."""

import asyncio
import sys
import time
from abc import ABC, abstractmethod
from typing import Final

from app.core.statistics import Statistics
from deployments.execution.instance_thread import Batch, InstanceThread
from deployments.execution.queued_request import CANCELLED, QueuedRequest
from deployments.scheduling.queue import RequestQueue

NEVER: Final = sys.maxsize


class Scheduler(ABC):
    """Decides which requests execute together and when. All methods run on the data-plane loop.

    One that can prepare a batch for a busy instance sets `_prepare_at`: from so many queued requests on,
    `release` is called although no instance is free.
    """

    def __init__(self, statistics: Statistics, queue: RequestQueue) -> None:
        self._statistics = statistics
        self._queue = queue
        self._free: list[InstanceThread] = []
        self._prepare_at = NEVER
        self._leaving: dict[InstanceThread, asyncio.Future[None]] = {}

    def add_instance(self, instance: InstanceThread) -> None:
        """Offer a loaded instance for execution."""
        self._free.append(instance)
        self.release()

    def remove_instance(self, instance: InstanceThread) -> asyncio.Future[None]:
        """Give an instance nothing new; the future is done when it has nothing more to do."""
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._withdraw(instance, gone)
        return gone

    def _withdraw(self, instance: InstanceThread, gone: asyncio.Future[None]) -> None:
        if instance in self._free:
            self._free.remove(instance)
            gone.set_result(None)
        else:
            self._leaving[instance] = gone

    def finished(self, instance: InstanceThread, batch: Batch) -> None:
        """Take an instance back after a batch, account for the batch and release the next one."""
        served = [pending.failed for pending in batch.requests].count(False)
        if served:  # as in Triton, an execution that failed for every request counts as failures only
            self._statistics.record_execution(
                batch.rows,
                served,
                batch.infer_start_ns - batch.start_ns,
                batch.infer_end_ns - batch.infer_start_ns,
                batch.end_ns - batch.infer_end_ns,
                batch.nulls,
            )
        if batch.done is not None and not batch.done.done():
            batch.done.set_result(None)
        self._take_back(instance)
        self.release()

    def _take_back(self, instance: InstanceThread) -> None:
        if self._leaving and instance in self._leaving:
            self._leaving.pop(instance).set_result(None)
        else:
            self._free.append(instance)

    @property
    def pending(self) -> int:
        """Requests queued and not yet executing."""
        return len(self._queue)

    @property
    def queue_age_ns(self) -> int:
        """How long the oldest queued request has been waiting, 0 when none is."""
        oldest_ns = self._queue.oldest_ns
        return time.monotonic_ns() - oldest_ns if oldest_ns else 0

    def submit(self, pending: QueuedRequest) -> None:
        """Queue a request, or execute it at once.

        Raises:
            InferError: UNAVAILABLE when the queue is full.
        """
        self._queue.append(pending)
        if self._free or len(self._queue) >= self._prepare_at:
            self.release()

    def cancel(self, pending: QueuedRequest) -> None:
        """A queued or executing request was cancelled; its `cancelled` is set already."""
        if not pending.dispatch_ns and not pending.answered:
            pending.fail(CANCELLED)
            self._queue.cancel(pending)

    def close(self) -> None:  # noqa: B027  (most schedulers have nothing to do)
        """Called last, when the instances have stopped; not on the loop."""

    @abstractmethod
    def release(self) -> None:
        """Give batches to free instances as far as the policy allows."""
