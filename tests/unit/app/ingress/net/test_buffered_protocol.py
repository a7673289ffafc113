"""Connections that fill their buffers give way to others."""

import asyncio
from typing import Any, cast

from app.ingress.http1.body import InPlaceProtocol, RoutedHead, SizedBody
from app.ingress.net.buffered_protocol import MOST_READ, SharedBufferProtocol, switch_protocol
from app.protocol.http.http1 import parse_head


class Transport:
    """Keeps whether it reads."""

    def __init__(self) -> None:
        self.reads = True

    def is_reading(self) -> bool:
        return self.reads

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def set_protocol(self, protocol: object) -> None: ...


class Connection:
    """Counts what it receives."""

    def __init__(self) -> None:
        self.received = 0

    def data_received(self, data: Any) -> None:
        self.received += len(data)

    def on_received_in_place(self, size: int, receiving: SizedBody) -> None:
        self.received += size

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


def switched(protocol: SharedBufferProtocol) -> Transport:
    transport = Transport()
    switch_protocol(cast(asyncio.Transport, transport), protocol)
    return transport


async def test_a_full_read_is_followed_by_the_turns_of_others() -> None:
    connection = Connection()
    protocol = SharedBufferProtocol(connection, memoryview(bytearray(8)))
    transport = switched(protocol)
    protocol.buffer_updated(7)
    assert transport.reads
    protocol.buffer_updated(8)
    assert not transport.reads and connection.received == 15
    await asyncio.sleep(0)
    assert transport.reads


async def test_a_connection_whose_client_reads_nothing_is_not_read_on() -> None:
    protocol = SharedBufferProtocol(Connection(), memoryview(bytearray(8)))
    transport = switched(protocol)
    protocol.buffer_updated(8)
    protocol.pause_writing()
    await asyncio.sleep(0)
    assert not transport.reads
    protocol.resume_writing()
    protocol.buffer_updated(8)
    transport.pause_reading()  # by the connection itself
    protocol.buffer_updated(8)
    await asyncio.sleep(0)


async def test_a_long_body_is_received_in_pieces() -> None:
    head = parse_head(b"POST / HTTP/1.1\r\nHost: h\r\n\r\n")
    protocol = InPlaceProtocol(Connection(), memoryview(bytearray(8)))
    transport = switched(protocol)
    body = protocol.receiving = SizedBody(RoutedHead(head, cast(Any, None)), MOST_READ + 10)
    assert len(protocol.get_buffer(-1)) == MOST_READ
    protocol.buffer_updated(MOST_READ)
    assert not transport.reads
    await asyncio.sleep(0)
    assert transport.reads and len(protocol.get_buffer(-1)) == body.missing == 10
    protocol.buffer_updated(10)
    assert transport.reads


async def test_a_body_begins_with_all_that_was_read_behind_its_head() -> None:
    head = parse_head(b"POST / HTTP/1.1\r\nHost: h\r\n\r\n")
    body = SizedBody(RoutedHead(head, cast(Any, None)), 3 * MOST_READ)
    assert body.feed(bytes(2 * MOST_READ)) is None  # a read of a plain protocol may be longer
    assert body.missing == MOST_READ
    assert body.feed(b"\1" * MOST_READ + b"next") == b"next"
    assert body.body == bytes(2 * MOST_READ) + b"\1" * MOST_READ
