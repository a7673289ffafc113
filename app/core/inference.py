"""A request in flight as its caller sees it: the sink of its responses, and its cancellation."""

from collections.abc import Callable
from typing import Protocol

from app.core.tensors import InferResponse

Sink = Callable[[InferResponse], None]
"""Receives the responses of one request, on the event loop; exactly one of them, the last, is final."""


class Call(Protocol):
    """A request in flight."""

    def cancel(self) -> None:
        """Ask for cancellation; the sink still gets one final response, unless it had it already."""
