"""What HTTP/2 connections of both data planes receive: header blocks, frames, and the messages of calls."""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import cycle, islice
from typing import Any, Final

import hpack

from app.native.choice import missing
from app.protocol.grpc import http2
from tests.fuzz.target import Target, cut
from tests.unit.app.ingress.http2 import planes

_COMPILED: Final = "auto" if missing() else "native"
_BLOCK: Final = planes.headers()
_GREETING: Final = planes.GREETING + planes.call(1, planes.message(), _BLOCK)


class _Sides:
    """A connection to a server of each data plane, and another one when it has failed."""

    def __init__(self, **settings: Any) -> None:
        self.both = [planes.Side(plane, **settings) for plane in ("python", _COMPILED)]

    def connect(self, greeting: bytes) -> None:
        """Open new connections; what their calls had counted has been given back."""
        for side in self.both:
            side.disconnect()
            side.connect()
        self.receive(greeting)

    def receive(self, data: bytes) -> None:
        for side in self.both:
            side.receive(data)

    def answer(self) -> None:
        """Answer all that waits."""
        for side in self.both:
            while side.service.waiting:
                side.answer()

    def failed(self) -> bool:
        """Return whether the connections have failed; both have, and say the same, or none has."""
        python, compiled = (side.goaway() for side in self.both)
        assert python == compiled
        return bool(python)

    def compare(self) -> None:
        """Compare all that can be seen of them since they were compared before."""
        python, compiled = (side.seen() for side in self.both)
        assert python == compiled
        for side in self.both:
            side.forget()


@cache
def _sides() -> _Sides:
    return _Sides()


@cache
def _header_readers() -> list[Any]:
    return [planes.Side(plane, max_header_size=1 << 13).connection._state for plane in ("python", "auto")]


def http2_headers(data: bytes) -> None:
    """Blocks of one connection, each behind two bytes with its length: both data planes say the same."""
    python, native = (state.header_reader() for state in _header_readers())
    while data:
        length, data = cut(data)
        block, data = data[:length], data[length:]
        try:
            head = python.read(block)
        except http2.Http2Error as error:
            try:
                native.read(block)
            except http2.Http2Error as same:
                assert (same.code, str(same)) == (error.code, str(error))
                raise
            raise AssertionError("only Python refuses it") from error
        assert native.read(block) == head


def http2_connections(data: bytes) -> None:
    """What follows a call on a connection: both data planes say the same, however it is cut."""
    length, data = cut(data)
    sides = _sides()
    sides.connect(b"")
    for piece in (_GREETING, data[:length], data[length:]):
        sides.receive(piece)
        sides.answer()
        if sides.failed():
            break
        sides.compare()


MOST_OPEN: Final = 3
"""Calls of `http2_data` that wait for more of their messages; there is room for not much more."""
MOST_FRAMES: Final = 12
MOST_PIECES: Final = 8
SHORT: Final = 1000
"""Bytes of a frame that an input contains whole, and otherwise the first of them."""
FIRST_BYTES: Final = 80
_SETTINGS: Final = {"max_buffered_bytes": 90_000, "max_message_size": 50_000, "max_streams": MOST_OPEN + 2}
_WINDOWS: Final = http2.settings_frame({4: 1 << 22}) + http2.window_update(0, 1 << 30)
_FIRST: Final = planes.GREETING + _WINDOWS + planes.call(1, planes.message(16384), _BLOCK)


class _Lasting(_Sides):
    """Connections that receive one call after the other, until they fail."""

    def __init__(self) -> None:
        super().__init__(**_SETTINGS)
        self._number = 0

    def open(self) -> int:
        """Return a stream that is not used; there are new connections when these have failed."""
        if not self._number or self.failed() or self._number > 1 << 20:
            self.connect(_FIRST)
            self.answer()
            self._number = 1
        self._number += 2
        for side in self.both:
            side.loop.now += 1  # so many control frames a second are allowed
        return self._number

    def reset_oldest(self) -> None:
        """Reset the calls that have been open for longest, if they are too many."""
        streams = self.both[0].connection._streams
        for number in list(streams)[:-MOST_OPEN]:
            self.receive(http2.rst_stream(number, 8))

    def widen(self) -> None:
        """Have the windows of the connection be as wide as at its beginning."""
        self.receive(http2.window_update(0, max(1, (1 << 30) - self.both[0].connection._output.window)))


@cache
def _lasting() -> _Lasting:
    return _Lasting()


def http2_data(data: bytes) -> None:
    """A call on connections that go on: its frames, and in which pieces they arrive.

    Five bytes choose a header block and the sizes of the pieces. For each frame there are its flags, or its
    kind, a stream, and its length in two bytes, and then what is in it: the first bytes of a long one.
    """
    sides = _lasting()
    number = sides.open()
    block, sizes, data = planes.BLOCKS[data[0] % 4] if data else _BLOCK, data[1:5], data[5:]
    sent = http2.frame(http2.HEADERS, http2.END_HEADERS, number, block) + b"".join(_frames(data, number))
    for piece in _pieces(sent, sizes):
        sides.receive(piece)
        if len(piece) & 1:
            sides.answer()
    if sides.failed():
        return
    sides.reset_oldest()
    sides.answer()
    sides.widen()
    sides.compare()


def _frames(data: bytes, number: int) -> Iterator[bytes]:
    """Yield the frames that an input describes: DATA of a call, in general."""
    for left in range(MOST_FRAMES - 1, -1, -1):
        if len(data) < 4:
            return
        flags, other, length = data[0], data[1], int.from_bytes(data[2:4], "big")
        given = min(length, FIRST_BYTES if length > SHORT else length) if left else len(data)
        payload, data = data[4 : 4 + given], data[4 + given :]
        kind = flags & 15 if flags >= 0xF0 else http2.DATA
        stream = max(1, number - 2 * (other & 3)) if other < 0xF0 else other & 15
        if length > SHORT:
            payload = payload.ljust(length, b"\1")
        yield http2.frame(kind, flags & 9 if kind == http2.DATA else other, stream, payload)


def _pieces(data: bytes, sizes: bytes) -> Iterator[bytes]:
    """Yield pieces in turn of so many bytes: 10 more are twice as many, 0 means all."""
    for size in islice(cycle(sizes or b"\0"), MOST_PIECES - 1):
        length = int(2 ** (size / 10)) if size else len(data)
        yield data[:length]
        data = data[length:]
        if not data:
            return
    yield data


def _described(*payloads: bytes, ends: bool = True) -> bytes:
    """Return frames of DATA as `http2_data` reads them."""
    last = len(payloads) - 1
    return b"".join(
        bytes([1 if ends and each == last else 0, 0])
        + len(payload).to_bytes(2, "big")
        + payload[: FIRST_BYTES if len(payload) > SHORT else None]
        for each, payload in enumerate(payloads)
    )


def _in_frames(size: int, length: int) -> bytes:
    data = planes.message(size)
    return _described(*(data[start : start + length] for start in range(0, len(data), length)))


def _header_blocks() -> bytes:
    encoder = hpack.Encoder()
    call = [
        (":method", "POST"),
        (":path", "/a/b"),
        ("te", "trailers"),
        ("grpc-timeout", "5S"),
        ("k-bin", "AA"),
    ]
    blocks = [encoder.encode(call) for _ in range(3)]
    return b"".join(len(block).to_bytes(2, "little") + block for block in blocks)


_CONNECTIONS: Final[Sequence[bytes]] = (
    b"\x20\0" + planes.call(3, planes.message(), _BLOCK) + planes.call(5, planes.message(20000), _BLOCK),
    b"\x40\0" + b"".join(planes.call(i, planes.message(20000), _BLOCK, 9000 * i) for i in (3, 5, 7)),
    b"\xff\xff" + http2.settings_frame({4: 20}) + planes.call(3, planes.message(), _BLOCK),
    b"\0\0" + http2.frame(http2.HEADERS, http2.END_HEADERS, 3, _BLOCK) + http2.rst_stream(3, 8),
)
_DATA: Final[Sequence[bytes]] = (
    b"\0\0\0\0\0" + _in_frames(8, 1 << 14),
    b"\1\x30\x50\0\x20" + _in_frames(8, 30),
    b"\2\x20\0\0\0" + _in_frames(90, 40),
    b"\3\x50\x50\x50\x51" + _in_frames(90, 1 << 14),
    b"\0\x60\x70\x80\x90" + _in_frames(20_000, 1 << 14),
    b"\0\x80\x70\x70\x70" + _in_frames(20_000, 17_000),
    b"\0\0\0\0\0" + _in_frames(20_000, 6000),
    b"\1\0\x30\0\0" + _described(planes.message(20)[:9], planes.message(20)[9:], b""),
    b"\0\0\0\0\0" + _described(planes.message(3000), ends=False),
)
HTTP2: Final = {
    "http2_headers": Target(http2_headers, (http2.Http2Error, ValueError), (_header_blocks(),)),
    "http2_connections": Target(http2_connections, (), tuple(_CONNECTIONS)),
    "http2_data": Target(http2_data, (), tuple(_DATA)),
}
