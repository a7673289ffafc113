"""Request bodies on their way in."""

import asyncio
from typing import NamedTuple, Protocol

import numpy as np

from app.ingress.http_exchange import Route
from app.protocol.http1 import ChunkedBody, RequestHead


class RoutedHead(NamedTuple):
    """A request head and its route."""

    head: RequestHead
    route: Route


class Receiver(Protocol):
    """The connection that a body is received for."""

    def connection_lost(self, exc: Exception | None) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def received_in_place(self, size: int, receiving: "SizedBody") -> None: ...


class SizedBody:
    """A body of known length, received into a buffer of its own."""

    __slots__ = ("_view", "body", "missing", "routed")

    def __init__(self, routed: RoutedHead, length: int) -> None:
        self.routed = routed
        self.missing = length
        # Not a bytearray: that writes zeros, and so takes the memory a client only promised to fill.
        self._view = memoryview(np.empty(length, np.uint8))  # type: ignore[arg-type]
        self.body = self._view.toreadonly()

    def room(self) -> memoryview:
        """Return the part still to be filled."""
        return self._view[len(self._view) - self.missing :]

    def filled(self, size: int) -> None:
        self.missing -= size

    def feed(self, data: bytes) -> bytes | None:
        """Take received bytes; return those behind the body's end, or None while it goes on."""
        taken = min(self.missing, len(data))
        self.room()[:taken] = memoryview(data)[:taken]
        self.missing -= taken
        return None if self.missing else data[taken:]


class ChunkedRequest:
    """A chunked body."""

    __slots__ = ("_chunks", "routed")

    def __init__(self, routed: RoutedHead, limit: int) -> None:
        self.routed = routed
        self._chunks = ChunkedBody(limit)

    @property
    def body(self) -> memoryview:
        return memoryview(self._chunks.data).toreadonly()

    def feed(self, data: bytes) -> bytes | None:
        """Take received bytes; return those behind the body's end, or None while it goes on."""
        return self._chunks.feed(data)


Receiving = SizedBody | ChunkedRequest


class InPlace(asyncio.BufferedProtocol):
    """Takes the connection's place while a long body comes in, and lets the socket write into its buffer."""

    def __init__(self, connection: Receiver, receiving: SizedBody) -> None:
        self._connection = connection
        self._receiving = receiving
        self.connection_lost = connection.connection_lost  # type: ignore[method-assign]
        self.pause_writing = connection.pause_writing  # type: ignore[method-assign]
        self.resume_writing = connection.resume_writing  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiving.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._receiving.filled(nbytes)
        self._connection.received_in_place(nbytes, self._receiving)
