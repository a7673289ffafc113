"""gRPC over HTTP/2: header lists, trailers, timeouts and message prefixes. No I/O.

Follows the document "gRPC over HTTP2" (grpc/doc/PROTOCOL-HTTP2.md). Header blocks of responses are literals
without indexing: the same bytes for every connection, whatever the peer's table.
"""

import math
import struct
import zlib
from base64 import b64decode
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple
from urllib.parse import quote

from app.core.buffers import allocate_private
from app.core.errors import shortened
from app.core.tensors import Buffer
from app.protocol.grpc.header_blocks import Pairs
from app.protocol.grpc.http2 import DATA, END_HEADERS, END_STREAM, HEADERS, frame_head

PREFIX: Final = struct.Struct(">BL")
OK: Final = 0
DEADLINE_EXCEEDED: Final = 4
RESOURCE_EXHAUSTED: Final = 8
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14

_TIMEOUT_UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_MAX_DETAILS: Final = 7000
"""Bytes of an encoded status message: clients refuse trailers from 8 KiB on."""
_PRINTABLE: Final = "".join(chr(c) for c in range(0x20, 0x7F) if chr(c) != "%")
_WINDOW_BITS: Final = {"gzip": 31, "deflate": 15}


class CallHead(NamedTuple):
    """The request headers of a call.

    Attributes:
        path: `/package.Service/Method`.
        timeout_s: None without a deadline.
        encoding: compression of messages marked as compressed; "identity" for none.
        accepts_gzip: whether the client accepts gzip.
        metadata: the headers that handlers see, names in lower case; bytes for names that end in `-bin`.
        refusal: HTTP status of a request that is no gRPC call; 0 for a call.
    """

    path: str
    timeout_s: float | None
    encoding: str
    accepts_gzip: bool
    metadata: tuple[tuple[str, str | bytes], ...]
    refusal: int = 0


def read_head(pairs: Pairs) -> CallHead:
    """Parse the header list of a request."""
    headers = dict(pairs)
    refusal = 0
    if headers.get(":method") != "POST":
        refusal = 405
    elif not headers.get("content-type", "").startswith("application/grpc"):
        refusal = 415
    return CallHead(
        headers.get(":path", ""),
        read_timeout(headers.get("grpc-timeout", "")),
        headers.get("grpc-encoding", "identity"),
        "gzip" in headers.get("grpc-accept-encoding", ""),
        tuple(map(decode_metadata, (pair for pair in pairs if not pair[0].startswith((":", "grpc-"))))),
        refusal,
    )


def decode_metadata(pair: tuple[str, str]) -> tuple[str, str | bytes]:
    """Return an entry of the metadata as handlers see it: bytes if its name ends in `-bin`."""
    name, value = pair
    if not name.endswith("-bin"):
        return pair
    try:
        return name, b64decode(value + "=" * (-len(value) % 4))
    except ValueError:
        return name, b""


def read_timeout(text: str) -> float | None:
    """Return a `grpc-timeout` in seconds; None if absent or malformed."""
    if not 2 <= len(text) <= 9 or not text[:-1].isdecimal() or text[-1] not in _TIMEOUT_UNITS:
        return None
    return int(text[:-1]) * _TIMEOUT_UNITS[text[-1]]


def header(name: str, value: str) -> bytes:
    """Encode a header field without indexing and Huffman coding (RFC 7541, section 6.2.2)."""
    return b"\x00" + _string(name) + _string(value)


def _string(text: str) -> bytes:
    data = text.encode("latin-1")
    size = len(data)
    if size < 127:
        return bytes((size,)) + data
    prefix = bytearray(b"\x7f")
    size -= 127
    while size > 127:
        prefix.append(size & 127 | 128)
        size >>= 7
    prefix.append(size)
    return bytes(prefix) + data


_STATUS_200: Final = b"\x88"
RESPONSE_HEADERS: Final = _STATUS_200 + header("content-type", "application/grpc")
GZIP_HEADERS: Final = RESPONSE_HEADERS + header("grpc-encoding", "gzip")
OK_TRAILERS: Final = header("grpc-status", "0")


_RESPONSE_HEAD: Final = struct.Struct(f">5sL{len(RESPONSE_HEADERS)}sHBBBLBL")
_RESPONSE_TAIL: Final = struct.Struct(f">5sL{len(OK_TRAILERS)}s")
_HEADERS_FRAME: Final = frame_head(len(RESPONSE_HEADERS), HEADERS, END_HEADERS, 0)[:5]
_TRAILERS_FRAME: Final = frame_head(len(OK_TRAILERS), HEADERS, END_HEADERS | END_STREAM, 0)[:5]


def response_frames(stream: int, size: int) -> tuple[bytes, bytes]:
    """Return what surrounds the only message of a successful call, of `size` bytes.

    In front are a HEADERS frame and the head of a DATA frame, behind is a HEADERS frame with the trailers.
    """
    length = size + PREFIX.size
    head = _RESPONSE_HEAD.pack(
        *(_HEADERS_FRAME, stream, RESPONSE_HEADERS),
        *(length >> 8, length & 0xFF, DATA, 0, stream, 0, size),
    )
    return head, _RESPONSE_TAIL.pack(_TRAILERS_FRAME, stream, OK_TRAILERS)


def trailers(status: int, message: str = "", retry_after_s: float = 0.0) -> bytes:
    """Return the header block that ends a call; `retry_after_s` asks the client to wait before it retries."""
    if not status and not message:
        return OK_TRAILERS
    block = header("grpc-status", str(status))
    if message:
        block += header("grpc-message", _percent_encoded(message))
    if retry_after_s:
        # What gRPC's own retries read (proposal A6), and what HTTP clients know.
        block += header("grpc-retry-pushback-ms", str(math.ceil(retry_after_s * 1000)))
        block += header("retry-after", str(math.ceil(retry_after_s)))
    return block


def _percent_encoded(message: str) -> str:
    """Encode a status message, with "..." for its middle if trailers have no room for all of it."""
    encoded = quote(message, safe=_PRINTABLE, errors="replace")
    while len(encoded) > _MAX_DETAILS:
        message = shortened(message, len(message) * _MAX_DETAILS // len(encoded))
        encoded = quote(message, safe=_PRINTABLE, errors="replace")
    return encoded


def refusal_headers(status: int) -> bytes:
    """Return the header block for a request that is no gRPC call."""
    return b"\x08" + _string(str(status))


def compress(message: bytes) -> bytes:
    """Compress a message as a gzip member."""
    packer = zlib.compressobj(wbits=31)
    return packer.compress(message) + packer.flush()


class Compressed(NamedTuple):
    """A complete message to decompress: that may need seconds and gigabytes."""

    encoding: str
    data: Buffer

    def decompress(self, limit: int) -> bytes:
        """Return the message, without inflating more of it than `limit` bytes.

        Raises:
            ValueError: not compressed with `encoding`, or cut short.
            MemoryError: larger than `limit` bytes.
        """
        unpacker = zlib.decompressobj(_WINDOW_BITS[self.encoding])
        try:
            data = unpacker.decompress(self.data, limit + 1)
        except zlib.error as error:
            raise ValueError(f"failed to decompress the message: {error}") from None
        if len(data) > limit:
            raise MemoryError(
                f"Received message larger than max (more than {limit} bytes decompressed). "
                "Use --grpc-max-decompressed-size to increase the limit."
            )
        if not unpacker.eof:
            raise ValueError("failed to decompress the message: it is cut short")
        return data


def only_message(data: bytes, limit: int) -> bytes | None:
    """Return the message if `data` is exactly one, uncompressed and within the limit: the common case."""
    if len(data) < PREFIX.size or data[0]:
        return None
    size = len(data) - PREFIX.size
    return data[PREFIX.size :] if size <= limit and size == int.from_bytes(data[1:5], "big") else None


Allocator = Callable[[int, Buffer], memoryview]
"""Allocates memory for a message, given its size and its first received bytes."""
_LONG: Final = 64 << 10
"""Bytes from which a message is received into memory from the `Allocator`."""


class MessageReader:
    """Splits the DATA of a stream into messages.

    Args:
        encoding: compression of messages marked as compressed.
        limit: largest message in bytes.
        allocate: allocates memory for long messages, by default ordinary memory.

    Attributes:
        completed: number of whole messages.
    """

    __slots__ = (
        *("_allocate", "_allocated", "_buffer", "_compressed", "_encoding", "_filled", "_limit", "_prefix"),
        *("_size", "completed"),
    )

    def __init__(self, encoding: str, limit: int, allocate: Allocator | None = None) -> None:
        self.completed = 0
        self._encoding = encoding
        self._limit = limit
        self._allocate = allocate
        self._buffer: memoryview | None = None
        self._allocated = False  # `_buffer` comes from `_allocate`
        self._prefix = b""  # an incomplete prefix
        self._filled = 0  # bytes in `_buffer`
        self._size = -1  # of the current message; -1 before its prefix is complete
        self._compressed = False

    def begin(self, memory: memoryview) -> None:
        """Receive a message, whose prefix was read, into memory of its size."""
        self._buffer, self._size, self._allocated = memory, len(memory), True

    @property
    def partial(self) -> bool:
        """Whether the last message is incomplete."""
        return bool(self._prefix) or self._size >= 0

    @property
    def received(self) -> int:
        """The bytes of an incomplete message that have been received."""
        return len(self._prefix) + self._filled

    def feed_segments(self, segments: Iterable[Buffer]) -> list[Buffer | Compressed]:
        """`feed` several segments, which are copied."""
        messages: list[Buffer | Compressed] = []
        for piece in segments:
            buffer, filled = self._buffer, self._filled
            if buffer is not None and filled + len(piece) < self._size:
                self._filled = filled + len(piece)
                buffer[filled : self._filled] = piece
            else:
                messages += self.feed(bytes(piece) if buffer is None else piece)
        return messages

    def feed(self, chunk: Buffer) -> list[Buffer | Compressed]:
        """Return the messages that `chunk` completes.

        Raises:
            ValueError: a message that is too large or has an unknown flag.
            LookupError: an unknown compression.
        """
        messages: list[Buffer | Compressed] = []
        while chunk:
            if self._size < 0:
                chunk = self._read_prefix(chunk)
                if self._size < 0:
                    break
                if not self._size:  # complete without further data
                    messages.append(self._complete(b""))
                    continue
            missing = self._size - self._filled
            piece, chunk = chunk[:missing], chunk[missing:]
            if self._buffer is None:
                messages.append(self._complete(bytes(piece)))
                continue
            end = self._filled + len(piece)
            self._buffer[self._filled : end] = piece
            self._filled = end
            if len(piece) == missing:
                messages.append(
                    self._complete(self._buffer.toreadonly() if self._allocated else bytes(self._buffer))
                )
        return messages

    def _read_prefix(self, chunk: Buffer) -> Buffer:
        """Read the prefix of a message, five bytes; return the rest of `chunk`."""
        if self._prefix:
            chunk, self._prefix = self._prefix + chunk, b""
        if len(chunk) < PREFIX.size:
            self._prefix = bytes(chunk)
            return b""
        flag, size = PREFIX.unpack_from(chunk)
        if size > self._limit:
            raise ValueError(f"Received message larger than max ({size} vs. {self._limit})")
        if flag > 1:
            raise ValueError(f"message with the flag {flag}")
        if flag and self._encoding not in _WINDOW_BITS:
            raise LookupError(self._encoding)
        self._compressed = flag == 1
        self._size = size
        chunk = chunk[PREFIX.size :]
        self._allocated = self._allocate is not None and size >= _LONG and not flag
        if self._allocate is not None and self._allocated:
            self._buffer = self._allocate(size, chunk)
        elif len(chunk) < size:  # one buffer rather than a list of pieces, each of which may be one byte
            self._buffer = allocate_private(size)
        return chunk

    def _complete(self, message: Buffer) -> Buffer | Compressed:
        self._filled, self._size, self._buffer = 0, -1, None
        self.completed += 1
        return Compressed(self._encoding, message) if self._compressed else message
