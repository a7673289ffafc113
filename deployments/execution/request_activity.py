"""The work that a request in execution has caused: calls to other models, and activities for its trace."""

import uuid
from time import monotonic_ns
from typing import Protocol

from app.core.observability.traced import MAX_CALLS, TracedCalls


class CallInFlight(Protocol):
    """A call to another model that may have been made for several requests of a batch."""

    def cancel_unwanted(self) -> None:
        """Cancel the call if no request waits for it any more."""


class RequestActivity:
    """Calls in flight; of a traced request also the calls that have ended, and its backend's activities.

    Used on the data-plane loop, except for `report`.

    Attributes:
        advised: the request was cancelled by advice: whoever has sent it still wants its responses.
    """

    __slots__ = ("_name", "activities", "advised", "in_flight", "traced")

    def __init__(self) -> None:
        self._name = ""
        self.advised = False
        self.in_flight: set[CallInFlight] = set()
        self.traced = TracedCalls()
        self.activities: list[tuple[str, int]] = []
        """Names and times, `time.monotonic_ns`."""

    @property
    def name(self) -> str:
        """A name of the request that no other has."""
        self._name = self._name or uuid.uuid4().hex
        return self._name

    def report(self, name: str, time_ns: int = 0) -> None:
        """Record an activity that takes place now, or at another `time.monotonic_ns`; from any thread."""
        if len(self.activities) < MAX_CALLS:
            self.activities.append((name, time_ns or monotonic_ns()))

    def cancel(self, advice: bool = False) -> None:
        """Cancel the calls that no other request waits for; with `advice` the request may need them."""
        self.advised = advice
        for call in list(self.in_flight):
            call.cancel_unwanted()
