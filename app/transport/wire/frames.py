"""The wire format, without I/O: bytes in, frames out.

A frame is a fixed header, a msgpack `meta`, and an optional payload of tensor bytes:

    0        1        2          4           8              16        24              32
    +--------+--------+----------+-----------+--------------+---------+---------------+------+-----+---------+
    | kind   | flags  | reserved | meta size | payload size | stream  | deadline (us) | meta | pad | payload |
    +--------+--------+----------+-----------+--------------+---------+---------------+------+-----+---------+

All integers are little-endian. A payload, and each tensor in it, starts at a multiple of 64 from the start of
the frame; without a payload there is no padding. `stream` names the request that a frame belongs to, or the
control call. `deadline` is the time a request has left when it is written, 0 for none: clocks of two machines
are never compared.
"""

from collections.abc import Callable, Iterator
from enum import IntEnum
from struct import Struct
from typing import Final

import msgspec
import numpy as np

from app.transport.protocol import ALIGNMENT, ProtocolError

ZEROS: Final = bytes(ALIGNMENT)
"""Padding."""
HEADER: Final = Struct("<BBHIQQQ")
HEADER_SIZE: Final = HEADER.size


class Kind(IntEnum):
    """The kind of a frame, which determines its meta and its direction."""

    INFER = 1
    """Client: a request (`messages.FrameEncoder.request`)."""
    RESPONSE = 2
    """Server: a response or a failure, the last of its stream when `FINAL` is set."""
    CANCEL = 3
    """Client: cancel the request of the stream; its final response is sent if `AWAITED` is set, all of them
    if `ADVICE` is. No meta."""
    RELEASE = 4
    """Both: slabs of the peer's arena that this end has released; meta is a msgpack array of offsets.

    A negative number is a lent tensor (`lending.released_key`).
    """
    CONTROL = 5
    """Client: a verb and its argument."""
    CONTROL_REPLY = 6
    """Server: the value that the verb returned, or a failure when `FAILED` is set."""
    DRAIN = 7
    """Server: send nothing new, and close once every response has arrived. No meta."""
    READINESS = 8
    """Server: the model is ready, or not when `FAILED` is set; requests are accepted either way. No meta."""
    OFFER = 9
    """Both: an arena that this end could lend from (`lending.py`)."""
    ACCEPT = 10
    """Both: the peer may lend from the arena whose number is the stream. No meta."""
    PING = 11
    """Client: answer with a PONG. No meta."""
    PONG = 12
    """Server: the event loop turns. No meta."""


_LAST_KIND: Final = 12


FINAL: Final = 1
"""RESPONSE flag: no other response follows on this stream."""
FAILED: Final = 2
"""CONTROL_REPLY flag: the meta is a failure. READINESS flag: not ready."""
AWAITED: Final = 4
"""CANCEL flag: the final response says when the model had the request."""
ADVICE: Final = 8
"""CANCEL flag: the model is told, and its responses are still wanted."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """A parsed frame. `meta` and `payload` are valid until the next frame is requested.

    An `owned` payload has memory of its own, which stays valid as long as views of it.
    """

    kind: int
    flags: int
    stream: int
    deadline_us: int
    meta: memoryview
    payload: memoryview
    owned: bool


def padded(nbytes: int) -> int:
    """Round up to the alignment of payloads."""
    return (nbytes + ALIGNMENT - 1) & -ALIGNMENT


_NO_PAYLOAD: Final = memoryview(b"")
_HEADER_ONLY: Final = {kind: HEADER.pack(kind, 0, 0, 0, 0, 0, 0) for kind in Kind}


def encode_frame(kind: Kind, stream: int = 0, meta: bytes = b"", flags: int = 0) -> bytes:
    """Build a frame that has no payload."""
    if not (meta or stream or flags):
        return _HEADER_ONLY[kind]
    return HEADER.pack(kind, flags, 0, len(meta), 0, stream, 0) + meta


def aligned_buffer(nbytes: int) -> memoryview:
    """Allocate writable memory on a 64-byte boundary; the kernel commits it as it is written."""
    block = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    return block.data[start : start + nbytes]


FULL_READ: Final = 64 << 10
"""Most bytes of a read of small frames: some hundred responses take their receiver 1 ms."""
_LONG_READ: Final = 512 << 10
"""Most bytes of a read of a large frame."""


class FrameDecoder:
    """Incremental parser that owns its receive buffers.

    Theory of operation: a driver receives into `get_buffer()` and calls `received(n)` with the number of
    bytes, which yields the complete frames. Small frames are parsed in place in one buffer that is reused, so
    data that outlives the call must be copied. A frame that does not fit the buffer is received into memory
    of its own: its tensors are views of it and keep nothing else alive.
    """

    def __init__(
        self, max_frame_bytes: int, max_meta_bytes: int, read_buffer_bytes: int, most_read: int = 1 << 62
    ) -> None:
        """`most_read`: bytes of a read of small frames."""
        self._max = max_frame_bytes
        self._most_read = most_read
        self._max_meta = max_meta_bytes
        self._shared = aligned_buffer(max(read_buffer_bytes, 2 * HEADER_SIZE))
        self._buffer = self._shared
        self._start = 0
        self._end = 0

    @property
    def unparsed(self) -> int:
        """Received bytes of a frame that is not complete."""
        return self._end - self._start

    def get_buffer(self) -> memoryview:
        """Return the memory to receive into; never empty."""
        most = self._most_read if self._buffer is self._shared else _LONG_READ
        return self._buffer[self._end : self._end + most]

    def taken(self, nbytes: int, take: Callable[[memoryview, int, int], int]) -> bool:
        """Have frames handled that are completed by `nbytes` written to `get_buffer()`.

        Args:
            nbytes: as of `received`, which must be called with 0 for the rest.
            take: handles frames between two places of a buffer; returns where the first one that it leaves
                begins.

        Returns:
            Whether there is no rest.
        """
        end = self._end = self._end + nbytes
        self._start = start = take(self._buffer, self._start, end)
        if start < end or self._buffer is not self._shared:
            return False
        self._start = self._end = 0
        return True

    def received(self, nbytes: int) -> Iterator[Frame]:
        """Yield each frame that is completed by `nbytes` written to `get_buffer()`.

        Raises:
            ProtocolError: a limit is exceeded or a kind unknown; the decoder must not be used again.
        """
        end = self._end = self._end + nbytes
        buffer, start = self._buffer, self._start
        owned = buffer is not self._shared
        missing = HEADER_SIZE
        while end - start >= HEADER_SIZE:
            kind, flags, reserved, meta_size, payload_size, stream, left = HEADER.unpack_from(buffer, start)
            meta_start = start + HEADER_SIZE
            frame_end = meta_end = meta_start + meta_size
            payload = _NO_PAYLOAD
            if payload_size:
                payload_start = start + padded(HEADER_SIZE + meta_size)
                frame_end = payload_start + payload_size
            size = frame_end - start
            if not 1 <= kind <= _LAST_KIND or reserved or meta_size > self._max_meta or size > self._max:
                raise self._refusal(kind, meta_size, size)
            if frame_end > end:
                missing = size
                break
            if payload_size:
                payload = buffer[payload_start:frame_end]
            yield Frame(kind, flags, stream, left, buffer[meta_start:meta_end], payload, owned)
            start = frame_end
        self._start = start
        self._make_room(missing)

    def _refusal(self, kind: int, meta_size: int, frame_size: int) -> ProtocolError:
        if meta_size > self._max_meta:
            return ProtocolError(f"frame meta of {meta_size} bytes exceeds the maximum of {self._max_meta}")
        if frame_size > self._max:
            return ProtocolError(f"frame of {frame_size} bytes exceeds the maximum of {self._max}")
        return ProtocolError(f"not a frame (kind {kind})")

    def _make_room(self, frame_size: int) -> None:
        """Move the unparsed rest to where a frame of this size can be completed."""
        start, end = self._start, self._end
        if frame_size > len(self._shared):
            if self._buffer is self._shared:
                self._switch_to(aligned_buffer(frame_size))
        elif self._buffer is not self._shared:
            self._switch_to(self._shared)
        elif start == end:
            self._start = self._end = 0
        elif start + frame_size > len(self._shared) or start > len(self._shared) // 2:
            self._switch_to(self._shared)

    def _switch_to(self, target: memoryview) -> None:
        rest = self._end - self._start
        # Through bytes, because source and target may overlap.
        target[:rest] = bytes(self._buffer[self._start : self._end])
        self._buffer, self._start, self._end = target, 0, rest
