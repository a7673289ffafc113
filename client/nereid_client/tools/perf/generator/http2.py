"""gRPC over HTTP/2, of messages that were made before.

The server is told to use no dynamic table of headers, so that equal header blocks have equal bytes: each is
decoded once, and a whole answer that came in one piece is known by its shape.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import cycle
from struct import Struct
from typing import Final
from urllib.parse import unquote

import hpack

from nereid_client.tools.perf.generator.call import Call, Owner, Wire, note_response
from nereid_client.tools.perf.generator.job import End, Endpoint

_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW, _CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_FRAME: Final = Struct(">IBI")
"""Length and type of a frame, its flags, its stream."""
_unpack: Final = _FRAME.unpack_from
_SETTING: Final = Struct(">HI")
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_MAX_WINDOW: Final = (1 << 31) - 1
_BEGIN_WINDOW: Final = 65535
_LAST_STREAM: Final = (1 << 31) - 3
_SEATS: Final = 100
_REFILL: Final = 1 << 30
_MAX_BLOCKS: Final = 1024
_LEARNED: Final = 32
"""Pieces that are looked at for the shape of a whole answer."""


class _Whole:
    """A whole answer as the server sends it: a header block, a message in one frame, and the trailers."""

    def __init__(self, data: bytes, sizes: Sequence[int]) -> None:
        self.size = len(data)
        self._unpack = Struct(">IBI{}sIBI{}xIBI{}s".format(*sizes)).unpack
        *frames, self.trailers = self._unpack(data)
        self.headers = frames[3]
        self._usual = *frames[:2], *frames[3:6], *frames[7:9], self.trailers
        self.begin = 18 + sizes[0]
        self.end = self.begin + sizes[1]

    @classmethod
    def of(cls, data: bytes) -> _Whole | None:
        """Return what data is an example of; None if it is no whole answer."""
        position = 0
        sizes: list[int] = []
        kinds: list[tuple[int, int, int]] = []
        while len(data) - position >= 9 and len(sizes) < 4:
            head, flags, stream = _unpack(data, position)
            sizes.append(head >> 8)
            kinds.append((head & 0xFF, flags, stream))
            position += 9 + sizes[-1]
        ends = [(_HEADERS, _END_HEADERS), (_DATA, 0), (_HEADERS, _END_HEADERS | _END_STREAM)]
        one = len({stream for _, _, stream in kinds}) == 1
        if position != len(data) or not one or [each[:2] for each in kinds] != ends:
            return None
        return cls(data, sizes)

    def stream(self, data: bytes) -> int:
        """Return the stream of the same answer to another call; 0 if it is another one."""
        a, b, stream, headers, c, d, second, e, f, third, trailers = self._unpack(data)
        if stream == second == third and (a, b, headers, c, d, e, f, trailers) == self._usual:
            return int(stream)
        return 0


class _Waiting:
    """What is left to send of a message that flow control holds back."""

    def __init__(self, stream: int, data: bytes | memoryview, window: int) -> None:
        self.stream, self.data, self.window = stream, memoryview(data), window


class GrpcConnection(Wire):
    """See `Connection`.

    Args:
        seats: at most so many calls at a time.
    """

    def __init__(self, owner: Owner, endpoint: Endpoint, seats: int = _SEATS) -> None:
        super().__init__(owner)
        self._next_block = _header_blocks(endpoint).__next__
        self._streaming, self._seats = endpoint.streaming, seats
        self._stream_block = _header_block(replace(endpoint, path=endpoint.stream_path))
        self._calls: dict[int, Call] = {}
        self._messages: dict[int, bytes] = {}
        self._headers: dict[int, dict[str, str]] = {}
        self._block_parts = b""
        self._buffer = b""
        self._next, self._unread = 1, 0
        self._window = self._first_window = _BEGIN_WINDOW
        self._frame = 16384
        self._waiting: deque[_Waiting] = deque()
        self._announced = False
        self._text = "connection lost"
        self._blocks: dict[bytes, dict[str, str]] = {}
        self._usual: dict[int, set[bytes]] = {_END_HEADERS: set(), _END_HEADERS | _END_STREAM: set()}
        self._whole: _Whole | None = None
        self._learning = 0 if endpoint.streaming else _LEARNED

    def connection_made(self, transport: object) -> None:
        self.transport = transport  # type: ignore[assignment]
        settings = b"".join(_SETTING.pack(*pair) for pair in ((1, 0), (2, 0), (4, _MAX_WINDOW)))
        refill = (_MAX_WINDOW - _BEGIN_WINDOW).to_bytes(4)
        self._write(_PREFACE + _frame(_SETTINGS, 0, 0, settings) + _frame(_WINDOW, 0, 0, refill))

    def _write(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[union-attr]

    def send(self, call: Call) -> None:
        stream, data = self._next, call.payload
        self._next += 2
        self._calls[stream] = call
        block = self._stream_block if self._begins_stream(call) else self._next_block()
        head = _FRAME.pack(len(block) << 8 | _HEADERS, _END_HEADERS, stream) + block
        size = len(data)
        if not self._waiting and size <= min(self._frame, self._window, self._first_window):
            self._window -= size
            self._write(b"".join((head, _FRAME.pack(size << 8 | _DATA, _END_STREAM, stream), data)))
            return
        self._write(head)
        self._waiting.append(_Waiting(stream, data, self._first_window))
        self._pump()

    def _begins_stream(self, call: Call) -> bool:
        """Return whether a call among others is a stream; from then on no answer is known by its shape."""
        if call.moments is None or self._streaming:
            return False
        self._learning, self._whole = 0, None
        return True

    def _pump(self) -> None:
        """Send what flow control allows."""
        for _ in range(len(self._waiting)):
            one = self._waiting.popleft()
            while one.data and (size := min(len(one.data), self._frame, self._window, one.window)) > 0:
                flags = _END_STREAM if size == len(one.data) else 0
                self._write(_FRAME.pack(size << 8 | _DATA, flags, one.stream) + one.data[:size])
                one.data = one.data[size:]
                one.window -= size
                self._window -= size
            if one.data and one.stream in self._calls:
                self._waiting.append(one)

    def data_received(self, data: bytes) -> None:
        whole = self._whole
        if (
            whole is not None
            and len(data) == whole.size
            and not self._buffer
            and (stream := whole.stream(data))
        ):
            self._take_whole(stream, data, whole)
            return
        if self._learning and not self._buffer:
            self._learning -= 1
            whole = _Whole.of(data)
        if self._buffer:
            data = self._buffer + data
        position, size = 0, len(data)
        while size - position >= 9:
            head, flags, stream = _unpack(data, position)
            end = position + 9 + (head >> 8)
            if end > size:
                break
            kind, payload = head & 0xFF, data[position + 9 : end]
            position = end
            # Most header blocks are those of the answer before: nothing is to be read in them.
            if kind == _HEADERS and payload in self._usual.get(flags, ()) and stream not in self._headers:
                if flags & _END_STREAM:
                    self._end(stream, End.OK, "")
                continue
            self._take(kind, flags, stream, payload)
        self._buffer = data[position:]
        if whole is not None and self._is_usual(whole):
            self._whole = whole

    def _take_whole(self, stream: int, data: bytes, whole: _Whole) -> None:
        """End a call with its answer."""
        self._count(whole.end - whole.begin)
        call = self._calls.get(stream)
        if call is not None and call.body is not None:
            call.body.append(data[whole.begin : whole.end])
        self._end(stream, End.OK, "")

    def _is_usual(self, whole: _Whole) -> bool:
        """Return whether the header blocks of an answer are known to be those of success."""
        known = self._usual
        return whole.headers in known[_END_HEADERS] and whole.trailers in known[_END_HEADERS | _END_STREAM]

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _DATA:
            self._take_data(flags, stream, payload)
        elif kind in (_HEADERS, _CONTINUATION):
            self._take_headers(kind, flags, stream, payload)
        elif kind == _SETTINGS and not flags & _ACK:
            self._take_settings(payload)
        elif kind == _WINDOW:
            self._take_window(stream, int.from_bytes(payload))
        elif kind == _PING and not flags & _ACK:
            self._write(_frame(_PING, _ACK, 0, payload))
        elif kind == _RESET:
            self._end(stream, End.CUT, f"stream reset by the server, code {int.from_bytes(payload)}")
        elif kind == _GOAWAY:
            self._text = f"the server closes the connection: {payload[8:200].decode(errors='replace')}"
            self._leave()

    def _leave(self) -> None:
        """Take no more calls, and close the connection after the last."""
        self.leaving = True
        if not self._calls:
            self.close()

    def _count(self, size: int) -> None:
        """Give the server back the window that so much data took, from time to time."""
        self._unread += size
        if self._unread > _REFILL:
            self._write(_frame(_WINDOW, 0, 0, self._unread.to_bytes(4)))
            self._unread = 0

    def _take_data(self, flags: int, stream: int, payload: bytes) -> None:
        self._count(len(payload))
        call = self._calls.get(stream)
        if call is None:
            return
        if call.moments is not None:
            self._take_responses(stream, call, payload)
        elif call.body is not None:
            call.body.append(payload)
        if flags & _END_STREAM:
            self._end(stream, End.CUT, "stream ended without a status")

    def _take_responses(self, stream: int, call: Call, payload: bytes) -> None:
        """Count the messages of a stream; one that begins with field 1 has an error's text."""
        data = self._messages.pop(stream, b"") + payload
        while len(data) >= 5 and len(data) >= (end := 5 + int.from_bytes(data[1:5])):
            note_response(call, data[5:end])
            if data[5:6] == b"\x0a":
                text = data[7:end].decode(errors="replace")
                self._headers.setdefault(stream, {})["response"] = text
            data = data[end:]
        if data:
            self._messages[stream] = data

    def _take_headers(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _HEADERS:
            self._block_parts, self._ends = b"", flags & _END_STREAM
        self._block_parts += payload
        if not flags & _END_HEADERS:
            return
        fields = self._decoded(self._block_parts)
        usual = fields.get("grpc-status") == "0" if self._ends else fields.get(":status") == "200"
        known = self._usual.get(flags)
        if usual and kind == _HEADERS and known is not None and len(known) < _MAX_BLOCKS:
            known.add(payload)
        if self._ends:
            self._end_with(stream, {**self._headers.pop(stream, {}), **fields})
        elif not usual:
            self._headers.setdefault(stream, {}).update(fields)

    def _decoded(self, block: bytes) -> dict[str, str]:
        fields = self._blocks.get(block)
        if fields is None:
            if len(self._blocks) >= _MAX_BLOCKS:
                self._blocks.clear()
            pairs = hpack.Decoder().decode(block, raw=True)
            fields = {
                bytes(name).decode("latin-1"): bytes(value).decode("latin-1") for name, value, *_ in pairs
            }
            self._blocks[block] = fields
        return fields

    def _end_with(self, stream: int, fields: Mapping[str, str]) -> None:
        status = fields.get("grpc-status", "")
        if status == "0" and "response" not in fields:
            self._end(stream, End.OK, "")
            return
        text = fields.get("response") or unquote(fields.get("grpc-message", ""))
        code = f"gRPC status {status}" if status else f"HTTP {fields.get(':status', '?')}"
        self._end(stream, End.REFUSED, f"{code}: {text}")

    def _take_settings(self, payload: bytes) -> None:
        for position in range(0, len(payload) - 5, 6):
            name, value = _SETTING.unpack_from(payload, position)
            if name == 3:
                self._seats = min(self._seats, value)
            elif name == 4:
                for one in self._waiting:
                    one.window += value - self._first_window
                self._first_window = value
            elif name == 5:
                self._frame = value
        self._write(_frame(_SETTINGS, _ACK, 0, b""))
        if not self._announced:
            self._announced = True
            self.owner.opened(self, self._seats)
        self._pump()

    def _take_window(self, stream: int, more: int) -> None:
        if not stream:
            self._window += more
        for one in self._waiting:
            if one.stream == stream:
                one.window += more
        self._pump()

    def expire(self, before: int) -> None:
        for stream, call in list(self._calls.items()):
            if call.sent < before:
                self._write(_frame(_RESET, 0, stream, (8).to_bytes(4)))
                self._end(stream, End.LATE, "no answer in time")

    def _end(self, stream: int, end: End, text: str) -> None:
        call = self._calls.pop(stream, None)
        if self._messages or self._headers:
            self._messages.pop(stream, None)
            self._headers.pop(stream, None)
        if call is not None:
            self.leaving = self.leaving or self._next > _LAST_STREAM
            self.owner.finish(self, call, end, text)
            if self.leaving:
                self._leave()

    def connection_lost(self, error: Exception | None) -> None:
        for stream in list(self._calls):
            self._end(stream, End.CUT, f"{self._text}: {error}" if error else self._text)
        self.owner.lost(self)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return _FRAME.pack(len(payload) << 8 | kind, flags, stream) + payload


@lru_cache(1)
def _header_blocks(endpoint: Endpoint) -> Iterator[bytes]:
    """Return the headers of one request after the other, of all connections."""
    common = _header_block(endpoint)
    return cycle([common + _fields(more) for more in endpoint.varied] or [common])


def _header_block(endpoint: Endpoint) -> bytes:
    """Return the headers that every request has, without any table: the bytes never change."""
    pairs = [
        (":method", "POST"),
        (":scheme", "https" if endpoint.tls else "http"),
        (":path", endpoint.path),
        (":authority", f"{endpoint.host}:{endpoint.port}"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "nereid-perf"),
        *endpoint.headers,
    ]
    return _fields(pairs)


def _fields(pairs: Iterable[tuple[str, str]]) -> bytes:
    return b"".join(b"\x00" + _string(name.lower()) + _string(value) for name, value in pairs)


def _string(text: str) -> bytes:
    """Return a string of HPACK, its length in seven bits and more."""
    data = text.encode("latin-1")
    size = len(data)
    if size < 127:
        return bytes((size,)) + data
    size -= 127
    length = bytearray((127,))
    while size >= 128:
        length.append(size % 128 + 128)
        size //= 128
    return bytes(length) + bytes((size,)) + data


def grpc_payload(message: bytes) -> bytes:
    """Return a message as gRPC sends it."""
    return b"\x00" + len(message).to_bytes(4) + message
