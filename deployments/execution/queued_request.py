"""A request in a replica, and the queue of its responses."""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from app.core.errors import Failure
from app.core.inference import Sink
from app.core.tensors import InferRequest, InferResponse, failed
from backends.base import DeliverAll, Request, deliver_each
from deployments.execution.request_activity import RequestActivity

logger = logging.getLogger(__name__)

_PAUSE_S: Final = 0.001
"""Seconds between two looks at streams that respond faster than that."""
_AHEAD: Final = 16
"""Responses that such a stream may have queued in the meantime; its model then waits."""
_LONGEST_WAIT_S: Final = 0.1


class QueuedRequest(Request):
    """A validated request; times are `time.monotonic_ns`.

    Attributes:
        rows: its batch size.
        shapes: equal for requests that may share a batch; None where all may. Set by the scheduler.
        accepted: the replica has become responsible for its response.
        failed: its final response is a failure.
        nbytes: bytes of its inputs; 0 before they are counted, by the queue if by nobody else.
        level, tickets: records of a queue with policies.
        may_reschedule: it may be executed again instead of answered.
        computed: the times of a traced request's execution: its start, the end of its input, the start of its
            output, its end.
    """

    may_reschedule: ClassVar[bool] = False

    __slots__ = (
        "_responses",
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
        responses: "ResponseQueue",
        rows: int,
    ) -> None:
        self.infer = infer
        self.answered = False
        self.detached = False
        self.rescheduled = False
        self.activity = None
        self.accepted = self.failed = False
        self.sink = sink
        self.rows = rows
        self.shapes: tuple[object, ...] | None = None
        self.cancelled = False
        self.arrival_ns = time.monotonic_ns()
        self.dispatch_ns = self.nbytes = 0
        self.computed: tuple[int, int, int, int] | None = None
        self._responses = responses

    def is_cancelled(self) -> bool:
        return self.cancelled

    def report_activity(self, name: str, time_ns: int = 0) -> None:
        if self.infer.trace:
            if self.activity is None:
                self.activity = RequestActivity()
            self.activity.report(name, time_ns)

    def deliver(self, response: InferResponse) -> None:
        if self.answered:
            raise RuntimeError("Unable to send response. Response sender has been closed.")
        if response.final:
            self.answered = True
            if response.failure is not None:
                self.failed = True
        self._responses.put(self, response)

    def fail(self, failure: Failure) -> None:
        """Deliver a failure, unless there was a final response already."""
        if not self.answered:
            self.deliver(failed(failure, self.infer.id))


class ResponseQueue:
    """Passes responses from the threads that make them to the data-plane loop.

    Waking the loop costs more than a small response. So one wake-up serves all responses queued meanwhile,
    and a thread that will report the end of an execution anyway defers the flush until then. Of a stream that
    goes on at once, further responses wake nobody: the loop looks after them by a timer, and a model that
    makes more of them in that time waits. Otherwise each would switch threads here, wake every process on its
    way, and take the time of the small requests there; and a fast model's would be buffered without a bound.

    Attributes:
        held: the loop itself executes, and flushes at the end; until then it could not be woken anyway.
        deliver: delivers a response.
        deliver_now: delivers those of several requests at once, on the loop; None where it is not compiled.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, deliver: Callable[[QueuedRequest, InferResponse], None]
    ) -> None:
        self._loop = loop
        self.deliver = deliver
        self._responses: deque[tuple[QueuedRequest, InferResponse]] = deque()
        self.deliver_now: DeliverAll | None = None
        self.held = False
        self._flush_scheduled = False
        self._thread = threading.local()
        self._streaming: frozenset[QueuedRequest] = frozenset()  # whose further responses wait for the timer
        self._pausing = False
        self._flushed = 0.0  # `time.monotonic` of the last responses that were not final
        self._taken = threading.Event()

    def use_compiled(
        self, deliver: Callable[[QueuedRequest, InferResponse], None], deliver_now: DeliverAll
    ) -> None:
        """Have C deliver responses, and send those of a batch; see `app/native/__init__.py`."""
        self.deliver, self.deliver_now = deliver, deliver_now

    def put(self, request: QueuedRequest, response: InferResponse) -> None:
        """Queue a response; from any thread."""
        self._responses.append((request, response))
        if self.held or self._flush_scheduled or getattr(self._thread, "defers_flush", False):
            return
        if request in self._streaming and not response.final:
            self._wait()
            return
        self._flush_scheduled = True
        self._loop.call_soon_threadsafe(self.flush)

    def _wait(self) -> None:
        """Wait while streams are ahead of the loop, in other threads than its own."""
        if self._is_ahead() and not self._is_on_loop():
            self._taken.clear()
            if self._is_ahead():  # still: from here on the loop sets it
                self._taken.wait(_LONGEST_WAIT_S)

    def _is_ahead(self) -> bool:
        return len(self._responses) >= _AHEAD * len(self._streaming) > 0

    def _is_on_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def deliver_all(self, requests: Sequence[Request], responses: Sequence[InferResponse]) -> None:
        """Deliver the final response of each request."""
        if self.held and self.deliver_now is not None:
            self.deliver_now(requests, responses)
        else:
            deliver_each(requests, responses)

    def defer_flush(self, deferred: bool) -> None:
        """Set whether the calling thread, not the loop's, will have `flush` called after each execution."""
        self._thread.defers_flush = deferred

    def flush(self) -> None:
        """Deliver the responses queued at this moment; on the loop."""
        self._flush_scheduled = False
        waited, self._streaming = self._streaming, frozenset()  # first: from now on the loop is woken
        responses, deliver = self._responses, self.deliver
        going_on: list[QueuedRequest] = []
        # Not until it is empty: a thread that keeps on responding must not block the loop.
        for _ in range(len(responses)):
            if not responses:  # delivering has called flush too
                break
            request, response = responses.popleft()
            if not response.final:
                going_on.append(request)
            try:
                deliver(request, response)
            except Exception:  # one undeliverable response must not block the others
                logger.exception("delivering a response")
        if going_on:
            self._look_again(going_on)
        if waited:
            self._taken.set()

    def _look_again(self, going_on: Sequence[QueuedRequest]) -> None:
        """Have streams that respond often wait for the timer."""
        now = time.monotonic()
        often, self._flushed = now - self._flushed < _PAUSE_S * 2, now
        if self._pausing or often:
            self._streaming = frozenset(going_on)
        if often and not self._pausing:
            self._pausing = True
            self._loop.call_later(_PAUSE_S, self._end_pause)

    def _end_pause(self) -> None:
        self._pausing = False
        self.flush()
