"""The queue in front of a model's instances."""

import time
from collections import deque
from collections.abc import Callable, Sequence

from app.core.errors import ErrorCode, Failure, FailureReason, InferError
from deployments.execution.queued_request import QueuedRequest

TIMEOUT = Failure(ErrorCode.UNAVAILABLE, "Request timeout expired", FailureReason.REJECTED)


def queue_full(request_id: str) -> InferError:
    """Return the error of a request for which there is no place in the queue."""
    text = f"[request id: {request_id or '<id_unknown>'}] Exceeds maximum queue size"
    return InferError(ErrorCode.UNAVAILABLE, text, FailureReason.REJECTED)


class RequestQueue:
    """Requests in order of arrival, bounded by their count and by the bytes of their inputs.

    A request that was cancelled counts no more. Its place is cleared when it comes to the head, or when half
    of the places are such, so that what clients gave up neither fills the queue nor holds their tensors.

    Attributes:
        nbytes: of the inputs of all requests.
        wake_by: called with the time (ns) by which `tidy` must be called because a timeout is over then. Only
            queues with timeouts of their own do so; a deadline waits here until its request is at the head.
        in_order: whether requests leave in order of arrival, whenever that is.
    """

    wake_by: Callable[[int], None] | None = None
    in_order: bool = True

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._places: deque[QueuedRequest] = deque()
        self._insert: Callable[[QueuedRequest], None] = self._places.append
        self._cancelled = 0
        self._size = 0
        self._timed = 0
        self.nbytes = 0

    def __len__(self) -> int:
        return self._size

    @property
    def timed(self) -> int:
        """How many requests have a deadline."""
        return self._timed

    def head(self, size: int) -> Sequence[QueuedRequest]:
        """At least the first `size` requests in order; those within the last `tidy` are all wanted."""
        return self._places

    @property
    def oldest_ns(self) -> int:
        """When the request that waits longest arrived, 0 when none waits."""
        return next((pending.arrival_ns for pending in self._places if not pending.answered), 0)

    @property
    def next_expiry_ns(self) -> int:
        """When the next timeout is over, 0 for never."""
        return 0

    def append(self, pending: QueuedRequest) -> None:
        """Queue a request; one alone may be of any size.

        Raises:
            InferError: UNAVAILABLE when the queue is full.
        """
        nbytes = 0
        for tensor in pending.infer.inputs:
            nbytes += len(tensor.data)
        if self._size and (self._size >= self._max_requests or self.nbytes + nbytes > self._max_bytes):
            raise queue_full(pending.infer.id)
        pending.nbytes = nbytes
        self.nbytes += nbytes
        self._size += 1
        if pending.infer.deadline:
            self._timed += 1
        self._insert(pending)

    def popleft(self) -> QueuedRequest:
        """Take the first request; `tidy` first."""
        pending = self._places.popleft()
        self._forget(pending)
        return pending

    def cancel(self, pending: QueuedRequest) -> None:
        """A queued request was answered in the model's stead and is not wanted any more."""
        self._forget(pending)
        self._cancelled += 1
        if 2 * self._cancelled > len(self._places):
            kept = [other for other in self._places if not other.answered]
            self._places.clear()
            self._places.extend(kept)
            self._cancelled = 0

    def tidy(self, count: int) -> bool:
        """Clear the first `count` places of what need not execute; returns whether anything is left.

        What was cancelled goes; what is past its deadline is told so and goes.
        """
        if self._cancelled or self._timed:
            self._clear(count, time.monotonic())
        return bool(self._places)

    def _clear(self, count: int, now: float) -> None:
        kept: list[QueuedRequest] = []
        places = self._places
        while places and len(kept) < count:
            pending = places.popleft()
            deadline = pending.infer.deadline
            if pending.answered:
                self._cancelled -= 1
            elif deadline and now > deadline:
                self._forget(pending)
                pending.fail(TIMEOUT)
            else:
                kept.append(pending)
        places.extendleft(reversed(kept))

    def _forget(self, pending: QueuedRequest) -> None:
        self._size -= 1
        self.nbytes -= pending.nbytes
        if pending.infer.deadline:
            self._timed -= 1
