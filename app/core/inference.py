"""A request in flight as its caller sees it: the sink of its responses, and its cancellation."""

from collections.abc import Callable
from time import monotonic
from typing import Protocol

from app.core.errors import Failure
from app.core.tensors import InferRequest, InferResponse, failed

Sink = Callable[[InferResponse], None]
"""Receives the responses of one request, on the event loop; exactly one of them, the last, is final."""


class Cancel(Protocol):
    """A function that cancels a request."""

    def __call__(self, advice: bool = False) -> None:
        """See `Call.cancel`."""


class Call(Protocol):
    """A request in flight."""

    def cancel(self, advice: bool = False) -> None:
        """Ask for cancellation; the sink still gets one final response, unless it had it already.

        With `advice` only the model is told: the sink gets what it responds, which may be all that it would
        have responded anyway.
        """


class Target(Protocol):
    """What answers the requests of one version of a model, in whatever way."""

    @property
    def available(self) -> bool:
        """Whether a request would be accepted now."""

    def submit(self, request: InferRequest, sink: Sink) -> Call:
        """Start a request; return at once. The sink is never called before this returns.

        Raises:
            InferError: the request cannot be started; the sink is then never called.
        """


def cancel_nothing(advice: bool = False) -> None:
    """Do nothing: a `Cancel` of a request that has ended, or cannot be cancelled yet."""


def no_sink(_: InferResponse) -> None:
    """Ignore a response: the sink of a request that had its final one."""
    # The receiver keeps the call to cancel it; if the call kept the receiver's sink, the two would be a
    # reference cycle, which only the garbage collector could free.


class InFlight:
    """A request on its way through this process, to a call of its own: what all kinds of routing share.

    Attributes:
        request: the request.
        sink: gets its responses; `no_sink` once it had the final one.
        call: where it was sent; None before that.
        cancelled: whether it was cancelled.
        advised: whether it was cancelled as advice only.
    """

    __slots__ = ("advised", "call", "cancelled", "request", "sink")

    def __init__(self, request: InferRequest, sink: Sink) -> None:
        self.request = request
        self.sink = sink
        self.call: Call | None = None
        self.cancelled = self.advised = False

    @property
    def ended(self) -> bool:
        """Whether the sink had its final response."""
        return self.sink is no_sink

    @property
    def late(self) -> bool:
        """Whether the deadline has passed; a request without one is never late."""
        return 0 < self.request.deadline <= monotonic()

    def sent(self, call: Call) -> None:
        """Note where the request was sent; a cancellation that came before is passed on."""
        self.call = call
        if self.cancelled or self.advised:
            call.cancel(advice=not self.cancelled)

    def cancel(self, advice: bool = False) -> None:
        """As `Call.cancel`; a request that was not sent yet is cancelled as soon as it is."""
        if advice:
            self.advised = True
        else:
            self.cancelled = True
        if self.call is not None:
            self.call.cancel(advice)

    def deliver(self, response: InferResponse) -> None:
        """Pass a response on; the sink is forgotten with the final one."""
        sink = self.sink
        if response.final:
            self.sink = no_sink
        sink(response)

    def fail(self, failure: Failure | BaseException) -> None:
        """Deliver a failure as the final response."""
        self.deliver(failed(failure, self.request.id))
