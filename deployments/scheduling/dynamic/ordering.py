"""`preserve_ordering`: responses leave in the order in which their requests were queued."""

import logging
from collections import deque
from collections.abc import Callable

from app.core.inference import Sink
from app.core.tensors import InferResponse
from deployments.execution.queued_request import QueuedRequest

logger = logging.getLogger(__name__)


class _Slot:
    """A request under way, and its responses that may not leave yet."""

    __slots__ = ("responses", "sink")

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.responses: deque[InferResponse] = deque()

    def send(self) -> bool:
        """Send the first response; returns whether it is the last one of its request."""
        response = self.responses.popleft()
        try:
            self.sink(response)
        except Exception:  # one response that cannot be delivered must not hold the others up
            logger.exception("delivering a response in order")
        return response.final


class ResponseOrder:
    """Holds responses back until all those of earlier requests are out. All methods run on the loop.

    Only what executes has a place, as in Triton: a request that its queue refuses, or gives up, is answered
    at once.

    Args:
        limit: places; when all are taken no more requests may start.
        resume: called when one is free again after that.
    """

    def __init__(self, limit: int, resume: Callable[[], None]) -> None:
        self._slots: deque[_Slot] = deque()
        self._limit = limit
        self._resume = resume

    @property
    def full(self) -> bool:
        """Whether so many responses wait for an earlier one that nothing may start."""
        return len(self._slots) >= self._limit

    def track(self, pending: QueuedRequest) -> None:
        """Give a request that starts the next place."""
        slot = _Slot(pending.sink)
        self._slots.append(slot)
        pending.sink = lambda response: self._put(slot, response)

    def _put(self, slot: _Slot, response: InferResponse) -> None:
        slot.responses.append(response)
        slots, was_full = self._slots, self.full
        while slots and slots[0].responses:
            first = slots[0]
            if first.send():
                slots.popleft()
        if was_full and not self.full:
            self._resume()
