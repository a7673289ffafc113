"""What every scheduler does: hold requests, give them to instances, account for them."""

from abc import ABC, abstractmethod

from app.core.errors import ErrorCode, FailureReason, InferError
from deployments.instances import Batch, InstanceThread
from deployments.scheduling.pending import CANCELLED, Pending
from deployments.statistics import Statistics

QUEUE_FULL = InferError(ErrorCode.UNAVAILABLE, "Exceeds maximum queue size", FailureReason.REJECTED)
TIMEOUT = InferError(ErrorCode.UNAVAILABLE, "Request timeout expired", FailureReason.REJECTED)


class Scheduler(ABC):
    """Decides which requests execute together and when. All methods run on the data-plane loop."""

    def __init__(self, statistics: Statistics, max_pending: int) -> None:
        self._statistics = statistics
        self._max_pending = max_pending
        self._free: list[InstanceThread] = []

    def add_instance(self, instance: InstanceThread) -> None:
        """Offer a loaded instance for execution."""
        self._free.append(instance)
        self.release()

    def finished(self, instance: InstanceThread, batch: Batch) -> None:
        """Take an instance back after a batch, account for the batch and release the next one."""
        self._statistics.record_execution(
            batch.rows,
            len(batch.requests),
            batch.infer_start_ns - batch.start_ns,
            batch.infer_end_ns - batch.infer_start_ns,
            batch.end_ns - batch.infer_end_ns,
        )
        if batch.done is not None and not batch.done.done():
            batch.done.set_result(None)
        self._free.append(instance)
        self.release()

    @property
    @abstractmethod
    def pending(self) -> int:
        """Requests queued and not yet executing."""

    @abstractmethod
    def submit(self, pending: Pending) -> None:
        """Queue a request, or execute it at once.

        Raises:
            InferError: UNAVAILABLE when the queue is full.
        """

    def cancel(self, pending: Pending) -> None:
        """A queued or executing request was cancelled; its `cancelled` is set already."""
        if not pending.dispatch_ns:
            pending.fail(CANCELLED)

    @abstractmethod
    def release(self) -> None:
        """Give batches to free instances as far as the policy allows."""


def is_stale(pending: Pending, now: float) -> bool:
    """Whether a queued request need not execute: cancelled, or past its deadline and now told so.

    `now` is `time.monotonic`.
    """
    if pending.answered:  # cancelled
        return True
    if pending.infer.deadline and now > pending.infer.deadline:
        pending.fail(TIMEOUT)
        return True
    return False
