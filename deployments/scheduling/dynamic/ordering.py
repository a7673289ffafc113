"""`preserve_ordering`: responses are delivered in the order in which their requests were queued."""

import logging
from collections import deque
from collections.abc import Callable

from app.core.inference import Sink
from app.core.tensors import InferResponse
from deployments.execution.queued_request import QueuedRequest

logger = logging.getLogger(__name__)


class _Tracked:
    """A request in flight, and its responses that may not be delivered yet."""

    __slots__ = ("responses", "sink")

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.responses: deque[InferResponse] = deque()

    def deliver(self) -> bool:
        """Deliver the first response; return whether it is the final one of its request."""
        response = self.responses.popleft()
        try:
            self.sink(response)
        except Exception:  # one undeliverable response must not block the others
            logger.exception("delivering a response in order")
        return response.final


class ResponseOrder:
    """Delays responses until those of earlier requests are delivered. All methods run on the loop.

    As in Triton only executing requests are ordered: one that its queue refuses, or that expires there,
    fails at once.

    Args:
        limit: requests tracked at a time; when reached no more may start.
        resume: called when another may start after that.
    """

    def __init__(self, limit: int, resume: Callable[[], None]) -> None:
        self._tracked: deque[_Tracked] = deque()
        self._limit = limit
        self._resume = resume

    @property
    def full(self) -> bool:
        """Whether the limit is reached: no request may start."""
        return len(self._tracked) >= self._limit

    def track(self, request: QueuedRequest) -> None:
        """Deliver the responses of a request that starts after those of the requests before it."""
        entry = _Tracked(request.sink)
        self._tracked.append(entry)
        request.sink = lambda response: self._put(entry, response)

    def _put(self, entry: _Tracked, response: InferResponse) -> None:
        entry.responses.append(response)
        tracked, was_full = self._tracked, self.full
        while tracked and tracked[0].responses:
            first = tracked[0]
            if first.deliver():
                tracked.popleft()
        if was_full and not self.full:
            self._resume()
