"""The queue in front of a model's instances, and its bounds."""

from collections import deque
from collections.abc import Callable, Sequence

from app.core.errors import ErrorCode, FailureReason, InferError
from app.core.failures import TIMEOUT
from deployments.execution.queued_request import QueuedRequest
from deployments.scheduling.admission import Admission


def queue_full(request_id: str) -> InferError:
    """Return Triton's error for a request that exceeds a bound of the queue."""
    text = f"[request id: {request_id or '<id_unknown>'}] Exceeds maximum queue size"
    return InferError(ErrorCode.UNAVAILABLE, text, FailureReason.REJECTED)


class QueueQuota:
    """Bounds queued requests by their count, by the bytes of their inputs and by the wait of the next one.

    Attributes:
        admission: decides by the wait; without one, by deadlines only.
        requests: how many are queued.
        nbytes: bytes of their inputs.
        timed: how many of them have a deadline.
    """

    def __init__(self, max_requests: int, max_bytes: int, admission: Admission | None = None) -> None:
        self.admission = admission or Admission()
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self.requests = 0
        self.nbytes = 0
        self.timed = 0
        self._late_ns = 0  # until then no queued request is too late, of those that have a deadline

    @property
    def is_limited(self) -> bool:
        """Whether a queued request may have to be dropped."""
        return bool(self.timed) or self.admission.is_learned

    def check(self, request: QueuedRequest, wait_ns: int) -> None:
        """Refuse a request that would wait for too long.

        Raises:
            InferError: UNAVAILABLE, with the time after which to retry.
        """
        refusal = self.admission.refusal(request, wait_ns)
        if refusal is not None:
            raise refusal.error()

    def acquire(self, request: QueuedRequest, requeued: bool = False) -> None:
        """Count a request. One alone may be of any size; one that was counted before is not refused again.

        Raises:
            InferError: UNAVAILABLE when a bound is exceeded.
        """
        infer = request.infer
        if requeued or not request.nbytes:
            request.nbytes = sum([len(tensor.data) for tensor in infer.inputs])
        total, requests = self.nbytes + request.nbytes, self.requests
        if (total > self._max_bytes or requests >= self._max_requests) and requests and not requeued:
            raise queue_full(infer.id)
        self.nbytes = total
        self.requests = requests + 1
        if (infer.deadline or infer.timeout_us) and self.admission.is_timed(request):
            late_ns = self.admission.late_ns(request)
            self._late_ns = min(self._late_ns, late_ns) if self.timed else late_ns
            self.timed += 1

    def release(self, request: QueuedRequest) -> None:
        """Stop counting a request."""
        self.requests -= 1
        self.nbytes -= request.nbytes
        infer = request.infer
        if infer.deadline or infer.timeout_us:
            self.timed -= self.admission.is_timed(request)


class RequestQueue(QueueQuota):
    """Requests in order of arrival.

    A cancelled request is not counted any more. Its entry is removed when it reaches the head, or when half
    of the entries are cancelled, so that these neither fill the queue nor keep their tensors alive.

    Attributes:
        wake_by: called with the time (ns) by which `tidy` must be called because a timeout ends then. Only
            queues with timeouts of their own do so; a deadline is looked at when its request is at the head.
        in_order: whether requests always leave in order of arrival.
    """

    wake_by: Callable[[int], None] | None = None
    in_order: bool = True

    def __init__(self, max_requests: int, max_bytes: int, admission: Admission | None = None) -> None:
        super().__init__(max_requests, max_bytes, admission)
        self._entries: deque[QueuedRequest] = deque()
        self._cancelled = 0

    def head(self, size: int) -> Sequence[QueuedRequest]:
        """Return at least the first `size` requests in order; call `tidy` for as many first."""
        return self._entries

    @property
    def oldest_ns(self) -> int:
        """Arrival (ns) of the request that has waited longest, 0 for an empty queue."""
        return next((request.arrival_ns for request in self._entries if not request.answered), 0)

    @property
    def next_expiry_ns(self) -> int:
        """When (ns) the next timeout ends, 0 for never."""
        return 0

    def append(self, request: QueuedRequest) -> None:
        """Queue a request.

        Raises:
            InferError: UNAVAILABLE when the queue is full, or the wait too long.
        """
        infer, nbytes = request.infer, request.nbytes
        if infer.deadline or infer.timeout_us or self.admission.limits_all or not nbytes:
            if self.requests:
                self.check(request, self.admission.wait_ns(self.requests))
            self.acquire(request)
        else:  # nothing but the bounds has to be looked at
            total, requests = self.nbytes + nbytes, self.requests
            if (total > self._max_bytes or requests >= self._max_requests) and requests:
                raise queue_full(infer.id)
            self.nbytes = total
            self.requests = requests + 1
        self._entries.append(request)

    def popleft(self) -> QueuedRequest:
        """Remove and return the first request; call `tidy` first."""
        request = self._entries.popleft()
        self.release(request)
        return request

    def take(self, count: int) -> list[QueuedRequest]:
        """Remove and return the first `count` requests; call `tidy` for as many first."""
        if count < len(self._entries):
            return [self.popleft() for _ in range(count)]
        taken = list(self._entries)
        self._entries.clear()
        self.requests = self.nbytes = self.timed = 0
        return taken

    def cancel(self, request: QueuedRequest) -> None:
        """Remove a queued request that was answered already."""
        self.release(request)
        self._cancelled += 1
        if 2 * self._cancelled > len(self._entries):
            kept = [other for other in self._entries if not other.answered]
            self._entries.clear()
            self._entries.extend(kept)
            self._cancelled = 0

    def tidy(self, count: int) -> bool:
        """Remove requests until none of the first `count` is cancelled, expired or too late to be executed.

        Returns:
            Whether any is left.
        """
        if self._cancelled or self.timed or self.admission.is_learned:
            now = self.admission.clock()
            if self._cancelled or self.admission.is_learned or now + self.admission.lead_ns >= self._late_ns:
                self._clear(count, now / 1e9)
        return bool(self._entries)

    def _clear(self, count: int, now: float) -> None:
        kept: list[QueuedRequest] = []
        entries = self._entries
        while entries and len(kept) < count:
            request = entries.popleft()
            deadline = request.infer.deadline
            if request.answered:
                self._cancelled -= 1
            elif deadline and now > deadline:
                self.release(request)
                request.fail(TIMEOUT)
            elif failure := self.admission.lateness(request, self.requests - 1 - len(kept)):
                self.release(request)
                request.fail(failure)
            else:
                kept.append(request)
        entries.extendleft(reversed(kept))
