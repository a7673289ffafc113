"""What requests in execution have led to: calls to other models, and activities for their traces.

Everything but the latter runs on the data-plane loop.
"""

from collections.abc import Sequence
from time import monotonic_ns

from app.core.inference import Call, Sink
from app.core.tensors import InferRequest, InferResponse
from app.core.traced import MAX_CALLS, CallUnderWay, TracedCalls
from backends.base import Request


class BlsCalls:
    """What one request has led to: calls under way; if it is traced, those that have ended, and activities
    that its backend has reported."""

    __slots__ = ("activities", "traced", "under_way")

    def __init__(self) -> None:
        self.under_way: set[BlsCall] = set()
        self.traced = TracedCalls()
        self.activities: list[tuple[str, int]] = []

    def report(self, name: str) -> None:
        """An activity takes place; from any thread."""
        if len(self.activities) < MAX_CALLS:
            self.activities.append((name, monotonic_ns()))

    def cancel(self) -> None:
        """The request was cancelled: cancel the calls that nobody else waits for."""
        for call in list(self.under_way):
            call.cancel_unwanted()


class BlsCall:
    """A call made while `callers` were executed: as one batch, so that it may be for any of them."""

    __slots__ = ("_call", "_callers", "_cancelled", "_noted", "_sent_ns", "_sink", "request")

    def __init__(self, request: InferRequest, sink: Sink, callers: Sequence[Request]) -> None:
        self.request = request
        self._sink = sink
        self._callers = callers
        self._call: Call | None = None
        self._cancelled = False
        self._sent_ns = monotonic_ns() if request.trace else 0
        self._noted: CallUnderWay | None = None

    @property
    def unwanted(self) -> bool:
        """Whether every request it may be for was cancelled."""
        return bool(self._callers) and all([caller.is_cancelled() for caller in self._callers])

    def begun(self, call: Call) -> None:
        """The call is under way."""
        self._call = call
        if self._cancelled:
            call.cancel()
        for caller in self._callers:
            if caller.nested is None:
                caller.nested = BlsCalls()
            caller.nested.under_way.add(self)
            if self._sent_ns and caller.infer.trace and self._noted is None:
                self._noted = caller.nested.traced.begin(self.request, self._sent_ns)

    def cancel(self) -> None:
        """Give up on the answer, also before the call is under way."""
        self._cancelled = True
        if self._call is not None:
            self._call.cancel()

    def cancel_unwanted(self) -> None:
        """Cancel it if nobody waits for it any more."""
        if self._call is not None and self.unwanted:
            self._call.cancel()

    def answered(self, response: InferResponse) -> None:
        """A response is there; the call becomes part of the trace of the request that is traced."""
        if self._noted is not None:
            self._noted.note(response)
        if response.final:
            for caller in self._callers:
                if caller.nested is not None:
                    caller.nested.under_way.discard(self)
        self._sink(response)
