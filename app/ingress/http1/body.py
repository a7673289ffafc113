"""Reception of request bodies."""

from typing import NamedTuple, Protocol

from app.ingress.http1.exchange import Route
from app.ingress.net.buffered_protocol import MOST_READ, Receiver, SharedBufferProtocol
from app.protocol.http.http1 import ChunkedBody, RequestHead
from app.transport.memory.shared_pool import allocate_aligned


class RoutedHead(NamedTuple):
    """A request head and its route."""

    head: RequestHead
    route: Route


class BodyReceiver(Receiver, Protocol):
    """A connection that receives bodies."""

    def eof_received(self) -> bool: ...

    def on_received_in_place(self, size: int, receiving: "SizedBody") -> None: ...


class SizedBody:
    """A body of known length, received into memory that can be lent to a replica."""

    __slots__ = ("_view", "body", "missing", "routed")

    def __init__(self, routed: RoutedHead, length: int) -> None:
        self.routed = routed
        self.missing = length
        self._view = allocate_aligned(length, _tensors_offset(routed.head))
        self.body = self._view.toreadonly()

    def unfilled(self) -> memoryview:
        """Return the part of the memory that is to be filled next."""
        start = len(self._view) - self.missing
        return self._view[start : start + MOST_READ]

    def filled(self, size: int) -> None:
        self.missing -= size

    def feed(self, data: bytes) -> bytes | None:
        """Add received bytes; return those behind the end of the body, None while it is incomplete."""
        start, size = len(self._view) - self.missing, min(self.missing, len(data))
        self._view[start : start + size] = memoryview(data)[:size]
        self.missing -= size
        return None if self.missing else data[size:]


def _tensors_offset(head: RequestHead) -> int:
    """Return the offset of binary tensors in the body of an inference request, else 0."""
    length = head.get(b"inference-header-content-length") or ""
    return int(length) if length.isdecimal() and len(length) < 10 else 0


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
        """Add received bytes; return those behind the end of the body, None while it is incomplete."""
        return self._chunks.feed(data)


Receiving = SizedBody | ChunkedRequest


class InPlaceProtocol(SharedBufferProtocol):
    """Receives long bodies in place; other data is received into `buffer` and passed on."""

    def __init__(self, connection: BodyReceiver, buffer: memoryview) -> None:
        super().__init__(connection, buffer)
        self.receiving: SizedBody | None = None
        self.eof_received = connection.eof_received  # type: ignore[method-assign]
        self._received_in_place = connection.on_received_in_place

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer if self.receiving is None else self.receiving.unfilled()

    def buffer_updated(self, nbytes: int) -> None:
        receiving = self.receiving
        if receiving is None:
            self._connection.data_received(bytes(self._buffer[:nbytes]))
        else:
            receiving.filled(nbytes)
            self._received_in_place(nbytes, receiving)
            if nbytes == MOST_READ and receiving.missing:
                self.give_way()
