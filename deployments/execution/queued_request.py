"""A request on its way through a replica."""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

from app.core.errors import ErrorCode, Failure, FailureReason
from app.core.inference import Sink
from app.core.tensors import InferRequest, InferResponse, failed
from backends.base import Request
from deployments.execution.request_activity import RequestActivity

logger = logging.getLogger(__name__)

CANCELLED = Failure(ErrorCode.CANCELLED, "Request Cancelled", FailureReason.CANCELED)


class QueuedRequest(Request):
    """A validated request with its place in time; times are `time.monotonic_ns`.

    `rows` is its batch size. `shapes` tells with which requests it may share a batch: None where the
    configuration leaves no choice. `accepted` is set once the replica answers for it. `failed` is set with a
    final response that is an error. `nbytes`, `level` and `tickets` are the queue's notes of it; only a queue
    with policies sets the last two. `may_reschedule`: it may be executed again instead of answered.
    `computed` are the times of a traced request's execution: its start, the end of its input, the start of
    its output, its end.
    """

    may_reschedule: ClassVar[bool] = False

    __slots__ = (
        "_outbox",
        "accepted",
        "arrival_ns",
        "cancelled",
        "computed",
        "dispatch_ns",
        "failed",
        "level",
        "nbytes",
        "rows",
        "shapes",
        "sink",
        "tickets",
    )
    level: Any
    tickets: tuple[list[Any], ...]

    def __init__(
        self,
        infer: InferRequest,
        sink: Sink,
        outbox: "ResponseQueue",
        rows: int,
    ) -> None:
        self.infer = infer
        self.answered = False
        self.detached = False
        self.rescheduled = False
        self.nested = None
        self.accepted = self.failed = False
        self.sink = sink
        self.rows = rows
        self.shapes: tuple[object, ...] | None = None
        self.cancelled = False
        self.arrival_ns = time.monotonic_ns()
        self.dispatch_ns = self.nbytes = 0
        self.computed: tuple[int, int, int, int] | None = None
        self._outbox = outbox

    def is_cancelled(self) -> bool:
        return self.cancelled

    def report_activity(self, name: str) -> None:
        if self.infer.trace:
            if self.nested is None:
                self.nested = RequestActivity()
            self.nested.report(name)

    def reply(self, response: InferResponse) -> None:
        if self.answered:
            raise RuntimeError("Unable to send response. Response sender has been closed.")
        if response.final:
            self.failed = response.failure is not None
            self.answered = True
        self._outbox.put(self, response)

    def fail(self, failure: Failure) -> None:
        """Reply with a failure, unless the final response is out already."""
        if not self.answered:
            self.reply(failed(failure, self.infer.id))


class ResponseQueue:
    """Carries responses from whatever thread made them to the data-plane loop.

    Waking the loop costs more than a small response, so one wake-up serves all that came meanwhile, and a
    thread that is about to report the end of an execution anyway holds its own back.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, deliver: Callable[[QueuedRequest, InferResponse], None]
    ) -> None:
        self._loop = loop
        self._deliver = deliver
        self._responses: deque[tuple[QueuedRequest, InferResponse]] = deque()
        self._scheduled = False
        self._thread = threading.local()

    def put(self, pending: QueuedRequest, response: InferResponse) -> None:
        """Queue a response; from any thread."""
        self._responses.append((pending, response))
        if self._scheduled or getattr(self._thread, "held", False):
            return
        self._scheduled = True
        self._loop.call_soon_threadsafe(self.flush)

    def hold(self, held: bool) -> None:
        """Whether the calling thread will flush by itself at the end of its execution."""
        self._thread.held = held

    def flush(self) -> None:
        """Deliver what is queued now; on the loop, which a thread that goes on putting must not hold."""
        self._scheduled = False
        responses = self._responses
        for _ in range(len(responses)):
            if not responses:  # delivering has flushed too
                break
            try:
                self._deliver(*responses.popleft())
            except Exception:  # one response that cannot be delivered must not hold the others up
                logger.exception("delivering a response")
