"""A request in flight as its caller sees it: the sink of its responses, and its cancellation."""

from collections.abc import Callable
from typing import Protocol

from app.core.tensors import InferResponse

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


def cancel_nothing(advice: bool = False) -> None:
    """Do nothing: a `Cancel` of a request that has ended, or cannot be cancelled yet."""
