"""HTTP/2 frames and keepalive (RFC 9113), as a gRPC server needs them. No I/O."""

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from app.core.tensors import Buffer

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)

DATA_SEGMENTS: Final = -1
"""The kind of `DataSegments`; there is no such frame on the wire."""

# Flags.
END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITISED: Final = 0x20

# Error codes.
NO_ERROR: Final = 0x0
PROTOCOL_ERROR: Final = 0x1
INTERNAL_ERROR: Final = 0x2
FLOW_CONTROL_ERROR: Final = 0x3
FRAME_SIZE_ERROR: Final = 0x6
REFUSED_STREAM: Final = 0x7
CANCEL: Final = 0x8
COMPRESSION_ERROR: Final = 0x9
ENHANCE_YOUR_CALM: Final = 0xB

# Settings.
MAX_CONCURRENT_STREAMS: Final = 0x3
INITIAL_WINDOW_SIZE: Final = 0x4
MAX_FRAME_SIZE: Final = 0x5
MAX_HEADER_LIST_SIZE: Final = 0x6

DEFAULT_WINDOW: Final = 65535
DEFAULT_FRAME_SIZE: Final = 16384
MAX_WINDOW: Final = 2**31 - 1
MAX_STREAM: Final = 2**31 - 1

_HEAD: Final = struct.Struct(">HBBBL")
_HEAD_SIZE: Final = 9
_SETTING: Final = struct.Struct(">HL")
_LONG: Final = struct.Struct(">L")


class Http2Error(Exception):
    """A connection error; its `code` is sent in a GOAWAY frame."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code

    def answer(self, last_stream: int) -> bytes:
        """Return what the client is sent last."""
        return goaway(last_stream, self.code, str(self))


class Frame(NamedTuple):
    """A frame, or a piece of a DATA frame: only the last piece has END_STREAM."""

    kind: int
    flags: int
    stream: int
    payload: bytes


class DataSegments(NamedTuple):
    """Consecutive long DATA frames of a stream: views of their payloads in the received bytes.

    `flags` are those of the last frame, 0 while it is incomplete.
    """

    kind: int
    flags: int
    stream: int
    payload: Sequence[memoryview]


class FrameReader:
    """Splits received bytes into frames; a long DATA frame is returned in pieces and never buffered.

    Args:
        max_frame: largest frame in bytes.
        long: bytes from which DATA frames are returned as `DataSegments`.
    """

    __slots__ = ("_flags", "_length", "_long", "_max_frame", "_missing", "_needed", "_rest", "_stream")

    def __init__(self, max_frame: int, long: int = MAX_WINDOW) -> None:
        self._max_frame = max_frame
        self._long = long
        # The beginning of a frame, and the size at which to parse it: it may arrive byte by byte.
        self._rest = bytearray()
        self._needed = 0
        # The current DATA frame: its length, missing bytes, flags, stream.
        self._length = 0
        self._missing = 0
        self._flags = 0
        self._stream = 0

    def feed(self, data: Buffer) -> Iterator[Frame | DataSegments]:
        """Yield the frames that `data` completes, each to be handled before the next.

        Raises:
            Http2Error: FRAME_SIZE_ERROR for a frame above the announced limit, after those in front of it.
        """
        position = 0
        if self._missing:
            frame, position = self._continue(data)
            yield frame
        elif self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return
            data, self._rest = self._rest, bytearray()
        end = len(data)
        while end - position >= _HEAD_SIZE:
            high, low, kind, flags, stream = _HEAD.unpack_from(data, position)
            length = high << 8 | low
            if length > self._max_frame:
                raise Http2Error(FRAME_SIZE_ERROR, f"frame of {length} bytes")
            start = position + _HEAD_SIZE
            stop = start + length
            stream &= MAX_STREAM
            if length >= self._long and kind == DATA and not flags & PADDED and start < end:
                segments, position = self._read_segments(data, position, stream)
                yield segments
                continue
            if stop <= end:
                yield Frame(kind, flags, stream, bytes(data[start:stop]))
                position = stop
                continue
            if kind == DATA and not flags & PADDED and start < end:
                self._length, self._missing, self._flags, self._stream = length, stop - end, flags, stream
                position = end
                yield Frame(DATA, 0, stream, bytes(data[start:end]))
            break
        if position < end:
            self._buffer(data[position:])

    def _buffer(self, beginning: Buffer) -> None:
        self._rest += beginning
        self._needed = _HEAD_SIZE
        if len(beginning) >= _HEAD_SIZE:
            high, low, kind, flags, _ = _HEAD.unpack_from(beginning)
            in_pieces = kind == DATA and not flags & PADDED
            self._needed += 1 if in_pieces else high << 8 | low

    def _continue(self, data: Buffer) -> tuple[Frame | DataSegments, int]:
        """Read the rest of the current DATA frame; return also where it ends, or the data."""
        if self._length >= self._long:
            return self._read_segments(data, 0, self._stream)
        piece = bytes(data[: self._missing])
        self._missing -= len(piece)
        return Frame(DATA, 0 if self._missing else self._flags, self._stream, piece), len(piece)

    def _read_segments(self, data: Buffer, position: int, stream: int) -> tuple[DataSegments, int]:
        """Read the long DATA frames of a stream from `position` on, or the rest of the current one.

        Returns:
            Them, and where they end, or the data.
        """
        view, end = memoryview(data), len(data)
        pieces: list[memoryview] = []
        flags = 0
        if self._missing:
            position = min(self._missing, end)
            pieces.append(view[:position])
            self._missing -= position
            flags = 0 if self._missing else self._flags
        while not (self._missing or flags & END_STREAM) and end - position > _HEAD_SIZE:
            high, low, kind, flags_, number = _HEAD.unpack_from(data, position)
            length = high << 8 | low
            other = kind or flags_ & PADDED or number & MAX_STREAM != stream
            if other or not self._long <= length <= self._max_frame:
                break
            start = position + _HEAD_SIZE
            position = min(start + length, end)
            pieces.append(view[start:position])
            self._missing = start + length - position
            self._length, self._flags, self._stream = length, flags_, stream
            flags = 0 if self._missing else flags_
        return DataSegments(DATA_SEGMENTS, flags, stream, pieces), position


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame."""
    return frame_head(len(payload), kind, flags, stream) + payload


def frame_head(length: int, kind: int, flags: int, stream: int) -> bytes:
    """Return the nine bytes in front of a payload."""
    return _HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream)


def settings_frame(settings: dict[int, int]) -> bytes:
    """Return a SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*item) for item in settings.items()))


def window_update(stream: int, size: int) -> bytes:
    """Return a WINDOW_UPDATE frame."""
    return frame(WINDOW_UPDATE, 0, stream, _LONG.pack(size))


def rst_stream(stream: int, code: int) -> bytes:
    """Return an RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream, _LONG.pack(code))


def goaway(last_stream: int, code: int, text: str = "") -> bytes:
    """Return a GOAWAY frame."""
    return frame(GOAWAY, 0, 0, _LONG.pack(last_stream) + _LONG.pack(code) + text.encode()[:256])


def read_settings(payload: bytes) -> dict[int, int]:
    """Parse a SETTINGS payload; the last value of a repeated setting counts.

    Raises:
        Http2Error: an invalid size or value.
    """
    if len(payload) % _SETTING.size:
        raise Http2Error(FRAME_SIZE_ERROR, "SETTINGS of a wrong size")
    found = list(_SETTING.iter_unpack(payload))
    for key, value in found:
        if key == INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
            raise Http2Error(FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE is too large")
        if key == MAX_FRAME_SIZE and not DEFAULT_FRAME_SIZE <= value < 2**24:
            raise Http2Error(PROTOCOL_ERROR, "MAX_FRAME_SIZE is out of range")
    return dict(found)


def read_long(payload: bytes) -> int:
    """Parse the payload of WINDOW_UPDATE or RST_STREAM.

    Raises:
        Http2Error: FRAME_SIZE_ERROR.
    """
    if len(payload) != _LONG.size:
        raise Http2Error(FRAME_SIZE_ERROR, "frame of a wrong size")
    value: int = _LONG.unpack(payload)[0]
    return value


def unpad(flags: int, payload: bytes) -> bytes:
    """Remove the padding and priority fields of a payload.

    Raises:
        Http2Error: PROTOCOL_ERROR for more padding than payload.
    """
    start, stop = 0, len(payload)
    if flags & PADDED:
        if not payload:
            raise Http2Error(FRAME_SIZE_ERROR, "padded frame without a length")
        start, stop = 1, stop - payload[0]
    if flags & PRIORITISED:
        start += 5
    if start > stop:
        raise Http2Error(PROTOCOL_ERROR, "more padding than payload")
    return payload[start:stop]


_FRAMES_PER_RESPONSE: Final = 4
"""Control frames that a client may send, beyond a limit, for each response it receives."""
_PINGS_AFTER_S: Final = 1.0
"""Seconds in which pings are read that a client has sent while it received."""


class Keepalive:
    """Counts control frames per second and decides about pings; all times are seconds of one clock.

    Attributes:
        sent: number of times that something of a call, or credit for its request, was sent.
        resumed: when the connection was last read again after it had waited for the client to receive.
    """

    __slots__ = (
        *("_counts", "_last_ping", "_second", "_sent_before_ping", "_sent_before_second"),
        *("_strikes", "born", "heard", "ping_sent", "resumed", "sent"),
    )

    def __init__(self, now: float) -> None:
        self.born = self.heard = now
        self.ping_sent = 0.0
        self.resumed = self._last_ping = float("-inf")
        self.sent = 0
        self._strikes = 0
        self._second = self._sent_before_second = self._sent_before_ping = 0
        self._counts = [0, 0]

    def count(self, is_reset: bool, limit: int, frames: int = 1) -> None:
        """Count control frames, resets separately; raise ENHANCE_YOUR_CALM above `limit` per second.

        What a client receives lets it send more of them, but no more resets: gRPC's own clients answer each
        response with two window updates.
        """
        if int(self.heard) != self._second:
            self._second, self._counts = int(self.heard), [0, 0]
            self._sent_before_second = self.sent
        self._counts[is_reset] += frames
        if self._counts[is_reset] <= limit:
            return
        earned = 0 if is_reset else _FRAMES_PER_RESPONSE * (self.sent - self._sent_before_second)
        if self._counts[is_reset] > limit + earned:
            raise Http2Error(ENHANCE_YOUR_CALM, "too many resets" if is_reset else "too many frames")

    def too_many_pings(self, interval: float, strikes: int, is_sending: bool = False) -> bool:
        """Count a ping if it came less than `interval` after the last; return whether that is too often.

        The count begins anew whenever something is sent, and while it `is_sending`: gRPC clients measure the
        bandwidth by pings while they receive, and one long message takes them many. Some of them are read
        only when all of it is sent.
        """
        was_sending = self.heard - self.resumed < _PINGS_AFTER_S
        if is_sending or was_sending or self.sent != self._sent_before_ping:
            self._sent_before_ping, self._strikes, self._last_ping = self.sent, 0, float("-inf")
        self._strikes += self.heard - self._last_ping < interval
        self._last_ping = self.heard
        return bool(strikes) and self._strikes > strikes

    def wants_ping(self, now: float, interval: float) -> bool:
        """Return whether to ping an idle client, and if so record the ping as sent."""
        if self.ping_sent or now - self.heard < interval:
            return False
        self.ping_sent = now
        return True

    def is_dead(self, now: float, timeout: float) -> bool:
        """Return whether a ping has not been answered in time."""
        return bool(self.ping_sent) and now - self.ping_sent > timeout
