"""Request bodies on their way in."""

from typing import NamedTuple, Protocol

from app.ingress.http1.exchange import Route
from app.ingress.net.buffered_protocol import Buffered, Receiver
from app.protocol.http.http1 import ChunkedBody, RequestHead
from app.transport.memory.shared_pool import allocate_aligned


class RoutedHead(NamedTuple):
    """A request head and its route."""

    head: RequestHead
    route: Route


class BodyReceiver(Receiver, Protocol):
    """The connection that a body is received for."""

    def received_in_place(self, size: int, receiving: "SizedBody") -> None: ...


class SizedBody:
    """A body of known length, received into memory of its own, which can be lent to a replica."""

    __slots__ = ("_view", "body", "missing", "routed")

    def __init__(self, routed: RoutedHead, length: int) -> None:
        self.routed = routed
        self.missing = length
        self._view = allocate_aligned(length, _tensors_at(routed.head))
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


def _tensors_at(head: RequestHead) -> int:
    """Where the tensors in a body begin, if it is an inference's."""
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
        """Take received bytes; return those behind the body's end, or None while it goes on."""
        return self._chunks.feed(data)


Receiving = SizedBody | ChunkedRequest


class InPlace(Buffered):
    """Lets the socket write into a long body; all else is received into `buffer` and passed on."""

    def __init__(self, connection: BodyReceiver, buffer: memoryview) -> None:
        super().__init__(connection, buffer)
        self.receiving: SizedBody | None = None
        self._received_in_place = connection.received_in_place

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer if self.receiving is None else self.receiving.room()

    def buffer_updated(self, nbytes: int) -> None:
        receiving = self.receiving
        if receiving is None:
            self._connection.data_received(bytes(self._buffer[:nbytes]))
        else:
            receiving.filled(nbytes)
            self._received_in_place(nbytes, receiving)
