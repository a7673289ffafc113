"""HTTP/1.1 messages without I/O: request heads, chunked bodies, response heads.

httptools parses heads; bodies are framed here, so that a body of known length can be received in place. A
message of ambiguous length is refused (RFC 9112, section 6.3), with one exception: a chunked body that also
has a Content-Length, as Python's requests may send it, is read by its chunks, as tritonserver does, and the
connection is closed after the response (section 6.1).
"""

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import httptools

MAX_CHUNKS: Final = 65536
_MAX_CHUNK_LINE: Final = 1024
_MAX_TRAILERS: Final = 8192
_SPACES_BEHIND: Final = re.compile(rb"(?<=[^\s])[ \t]+(?=\r\n)")
"""Spaces behind a header's value, which are no part of it (RFC 9110, section 5.5); not a line of spaces."""
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_HEX: Final = frozenset(b"0123456789abcdefABCDEF")


class HttpError(Exception):
    """A message that violates HTTP/1.1; the connection must be closed after the error response."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message


class RequestHead(NamedTuple):
    """A request line and headers.

    `path` is the raw target without its query, not percent-decoded. Header names are lower case.
    `content_length` is 0 without a body and None for a chunked one. `names` are the header names as they were
    sent, in the same order. `prefix` is what a gateway had before `path`.
    """

    method: str
    path: str
    query: bytes
    version: str
    headers: tuple[tuple[bytes, bytes], ...]
    keep_alive: bool
    content_length: int | None
    expects_continue: bool
    names: tuple[bytes, ...] = ()
    prefix: str = ""

    def without(self, prefixes: Iterable[str]) -> "RequestHead":
        """Return the head without the first of some prefixes that its path has, whole components alone."""
        for prefix in prefixes:
            if self.path.startswith(prefix) and self.path[len(prefix) :][:1] in ("", "/"):
                return self._replace(path=self.path[len(prefix) :] or "/", prefix=prefix)
        return self

    def get(self, name: bytes) -> str | None:
        """Return the first value of a header, by lower-case name."""
        return next((value.decode("latin-1") for key, value in self.headers if key == name), None)

    def as_sent(self) -> list[tuple[str, str]]:
        """Return the headers as text, with names in their original case."""
        pairs = zip(self.names, self.headers, strict=True)
        return [(name.decode("latin-1"), _decoded(value)) for name, (_, value) in pairs]


class _Collector:
    """Callbacks of httptools, which collect the parts of a head."""

    def __init__(self) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.names: list[bytes] = []
        self.complete = False
        self.keep_alive = False
        self.parser: Any = httptools.HttpRequestParser(self)

    def accept_both_lengths(self) -> "_Collector":
        """Accept a chunked body that also has a Content-Length."""
        self.parser.set_dangerous_leniencies(lenient_chunked_length=True)
        return self

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))
        self.names.append(name)

    def on_headers_complete(self) -> None:
        self.complete = True
        # The parser resets this at the end of the message, which without a body is right here.
        self.keep_alive = self.parser.should_keep_alive()


def parse_head(data: bytes) -> RequestHead:
    """Parse a request head, its final empty line included.

    Raises:
        HttpError: 400 for a malformed or ambiguous head, 417 and 501 for unsupported ones.
    """
    line = data.find(b"\r\n")
    data = data[:line] + _SPACES_BEHIND.sub(b"", data[line:])
    collector = _Collector()
    parser = collector.parser
    if not _feed(collector, data):
        collector = _Collector().accept_both_lengths()
        parser = collector.parser
        if not _feed(collector, data):
            raise HttpError(400, "Bad Request")
        collector.keep_alive = False
    version = parser.get_http_version()
    if not collector.complete or version not in ("1.0", "1.1"):
        raise HttpError(400, "Bad Request")
    path, query = _target(collector.url)
    return RequestHead(
        parser.get_method().decode("latin-1"),
        path,
        query,
        version,
        tuple(collector.headers),
        collector.keep_alive,
        _body_length(collector.headers, version),
        _expects_continue(collector.headers),
        tuple(collector.names),
    )


def _feed(collector: _Collector, data: bytes) -> bool:
    """Parse a head; return whether it is well-formed."""
    try:
        collector.parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        pass  # A server may ignore an upgrade it does not speak (RFC 9110, section 7.8).
    except httptools.HttpParserError:
        return False
    finally:
        collector.parser = None  # else a reference cycle, garbage for the collector
    return True


def _target(url: bytes) -> tuple[str, bytes]:
    if not url.startswith(b"/"):
        try:
            parsed = httptools.parse_url(url)
        except httptools.HttpParserInvalidURLError:
            raise HttpError(400, "Bad Request") from None
        return _decoded(parsed.path or b"/"), parsed.query or b""
    path, _, query = url.partition(b"#")[0].partition(b"?")
    return _decoded(path), query


def _decoded(path: bytes) -> str:
    try:
        return path.decode()
    except UnicodeDecodeError:
        return path.decode("latin-1")


def _values(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> list[bytes]:
    return [value for name, value in headers if name == wanted]


def _body_length(headers: list[tuple[bytes, bytes]], version: str) -> int | None:
    codings = _values(headers, b"transfer-encoding")
    lengths = _values(headers, b"content-length")
    if codings:
        if version == "1.0" or len(codings) > 1:
            raise HttpError(400, "Bad Request")
        if codings[0].strip().lower() != b"chunked":
            raise HttpError(501, "Unsupported transfer encoding")
        return None
    if not lengths:
        return 0
    value = lengths[0]
    if len(lengths) > 1 or not value.isdigit() or len(value) > 19:
        raise HttpError(400, "Bad Request")
    return int(value)


def _expects_continue(headers: list[tuple[bytes, bytes]]) -> bool:
    expectations = _values(headers, b"expect")
    if expectations and expectations[0].lower() != b"100-continue":
        raise HttpError(417, "Expectation Failed")
    return bool(expectations)


class ChunkedBody:
    """Receives a chunked body.

    Args:
        max_bytes: limit on the decoded bytes.
    """

    def __init__(self, max_bytes: int) -> None:
        self.data = bytearray()
        self._max_bytes = max_bytes
        self._chunks = 0
        self._unparsed = b""
        self._remaining = 0
        self._in_data = False
        self._trailers = -1

    def feed(self, data: bytes) -> bytes | None:
        """Process received bytes; return those after the body's end, or None while the body is incomplete.

        Raises:
            HttpError: 400 for bad framing or too many chunks, 413 for too many bytes.
        """
        data = self._unparsed + data
        position = 0
        while True:
            if self._in_data:
                position = self._read_data(data, position)
                if self._in_data:
                    self._unparsed = data[position:]
                    return None
            end = data.find(b"\r\n", position)
            if end < 0 or end - position > _MAX_CHUNK_LINE:
                self._unparsed = data[position:]
                if len(self._unparsed) > _MAX_CHUNK_LINE:
                    raise HttpError(400, "Bad Request")
                return None
            line, position = data[position:end], end + 2
            if self._read_line(line):
                return data[position:]

    def _read_data(self, data: bytes, position: int) -> int:
        """Append chunk data and skip the CRLF after it; return the new position."""
        size = min(self._remaining, len(data) - position)
        self.data += memoryview(data)[position : position + size]
        self._remaining -= size
        position += size
        if self._remaining or len(data) - position < 2:
            return position
        if data[position : position + 2] != b"\r\n":
            raise HttpError(400, "Bad Request")
        self._in_data = False
        return position + 2

    def _read_line(self, line: bytes) -> bool:
        """Process a size or trailer line; return whether the body has ended."""
        if self._trailers >= 0:
            self._trailers += len(line)
            if self._trailers > _MAX_TRAILERS:
                raise HttpError(400, "Bad Request")
            return not line
        self._start_chunk(_chunk_size(line))
        return False

    def _start_chunk(self, size: int) -> None:
        if size == 0:
            self._trailers = 0
            return
        self._chunks += 1
        if self._chunks > MAX_CHUNKS:
            raise HttpError(
                400,
                f"Chunked request body exceeds maximum of {MAX_CHUNKS} non-empty chunks. "
                "Send fewer or larger HTTP chunks.",
            )
        if len(self.data) + size > self._max_bytes:
            raise too_large(len(self.data) + size, self._max_bytes)
        self._remaining = size
        self._in_data = True


def too_large(size: int, limit: int) -> HttpError:
    """Return the error for a body beyond the limit."""
    return HttpError(
        413, f"request body size of {size} bytes exceeds the maximum allowed size of {limit} bytes"
    )


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].rstrip(b" \t")
    if not 0 < len(digits) <= 16 or not _HEX.issuperset(digits):
        raise HttpError(400, "Bad Request")
    return int(digits, 16)


_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}


def response_head(status: int, headers: bytes, length: int | None, keep_alive: bool) -> bytes:
    """Return a response head.

    Args:
        status: HTTP status.
        headers: complete header lines, each with its CRLF.
        length: bytes of the body; None for a chunked one.
        keep_alive: whether the connection stays open; a header is written only if it does not.
    """
    line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    if not keep_alive:
        headers += b"Connection: close\r\n"
    if length is None:
        return line + headers + b"Transfer-Encoding: chunked\r\n\r\n"
    return b"%b%bContent-Length: %d\r\n\r\n" % (line, headers, length)
