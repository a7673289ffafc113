from typing import Any

import pytest

from app.protocol.header_cache import HeaderCache
from app.protocol.http.http1 import MAX_CHUNKS, ChunkedBody, HttpError, RequestHead, parse_head, response_head


def head(line: str = "GET / HTTP/1.1", *headers: str) -> RequestHead:
    return parse_head("\r\n".join((line, *headers, "", "")).encode("latin-1"))


def test_head_is_parsed() -> None:
    parsed = head("POST /v2/models/a%20b/infer?x=1#f HTTP/1.1", "Content-Length: 12", "X-Y: z")
    assert (parsed.method, parsed.path, parsed.query) == ("POST", "/v2/models/a%20b/infer", b"x=1")
    assert (parsed.content_length, parsed.keep_alive, parsed.get(b"x-y")) == (12, True, "z")
    assert head("GET http://host:1/v2?q HTTP/1.1").path == "/v2"


def test_spaces_around_a_value_are_no_part_of_it() -> None:
    parsed = head("POST / HTTP/1.1", "Content-Length:  5 \t", "X: a b  ", "Expect: 100-continue ", "Y:  ")
    assert (parsed.content_length, parsed.expects_continue) == (5, True)
    assert parsed.headers == (
        (b"content-length", b"5"),
        (b"x", b"a b"),
        (b"expect", b"100-continue"),
        (b"y", b""),
    )
    assert head("POST / HTTP/1.1", "Transfer-Encoding: chunked ").content_length is None
    for folded in ("X: a\r\n ", "X: a\r\n \r\n b"):  # a line of spaces must not become the end of the head
        with pytest.raises(HttpError):
            head("POST / HTTP/1.1", folded, "Content-Length: 5")


@pytest.mark.parametrize(
    ("line", "headers", "keep_alive"),
    [
        ("GET / HTTP/1.1", (), True),
        ("GET / HTTP/1.1", ("Connection: close",), False),
        ("GET / HTTP/1.0", (), False),
        ("GET / HTTP/1.0", ("Connection: keep-alive",), True),
    ],
)
def test_keep_alive(line: str, headers: tuple[str, ...], keep_alive: bool) -> None:
    assert head(line, *headers).keep_alive is keep_alive


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (400, ("Content-Length: 1", "Content-Length: 2")),
        (400, ("Content-Length: 1", "Content-Length: 1")),
        (400, ("Content-Length: -1",)),
        (400, ("Content-Length: 1x",)),
        (400, ("Content-Length: 99999999999999999999",)),
        (400, ("Content-Length: 1", "Content-Length: 2", "Transfer-Encoding: chunked")),
        (501, ("Content-Length: 1", "Transfer-Encoding: gzip, chunked")),
        (400, ("Transfer-Encoding: chunked", "Transfer-Encoding: chunked")),
        (501, ("Transfer-Encoding: gzip, chunked",)),
        (400, ("no colon",)),
        (400, ("a b: c",)),
        (400, ("a: b\0c",)),
        (417, ("Expect: magic",)),
    ],
)
def test_invalid_heads_are_refused(status: int, headers: tuple[str, ...]) -> None:
    with pytest.raises(HttpError) as caught:
        head("POST / HTTP/1.1", *headers)
    assert caught.value.status in (status, 400)


def test_chunks_have_precedence_over_a_length() -> None:
    """As Python's requests sends a body when told to be chunked; the connection ends with the answer."""
    parsed = head("POST / HTTP/1.1", "Content-Length: 99", "Transfer-Encoding: chunked")
    assert parsed.content_length is None
    assert not parsed.keep_alive


@pytest.mark.parametrize(
    "line", ["GET /", "GET  / HTTP/1.1 x", "GET / HTTP/9.9", "\x16\x03\x01", "G\xc3T / HTTP/1.1"]
)
def test_request_lines_refused(line: str) -> None:
    with pytest.raises(HttpError):
        head(line)


def feed_in_pieces(data: bytes, size: int, limit: int = 1 << 20) -> Any:
    body, rest = ChunkedBody(limit), None
    for start in range(0, len(data), size):
        rest = body.feed(data[start : start + size])
        if rest is not None:
            return bytes(body.data), rest + data[start + size :]
    return bytes(body.data), rest


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_chunks_in_any_pieces(size: int) -> None:
    data = b"3;ext=1\r\nabc\r\n0A \r\n0123456789\r\n0\r\nTrailer: x\r\n\r\nGET /next"
    assert feed_in_pieces(data, size) == (b"abc0123456789", b"GET /next")


@pytest.mark.parametrize(
    "data",
    [
        b"x\r\n",
        b"-1\r\n",
        b"\r\n",
        b"0x3\r\nabc\r\n",
        b"3\r\nabcd\r\n",
        b"3\r\nabc\n\n",
        b"1" * 17 + b"\r\n",
        b"1" * 2000,
        b"0\r\n" + b"a: b\r\n" * 5000,
        b"0\r\n" + b"a" * 2000,
    ],
)
def test_malformed_chunks_are_refused(data: bytes) -> None:
    with pytest.raises(HttpError) as caught:
        feed_in_pieces(data, 1000)
    assert caught.value.status in (400, 413)


def test_chunks_are_counted_and_limited() -> None:
    many = b"1\r\nx\r\n" * MAX_CHUNKS
    assert feed_in_pieces(many + b"0\r\n\r\n", 1 << 16)[0] == b"x" * MAX_CHUNKS
    with pytest.raises(HttpError) as caught:
        feed_in_pieces(many + b"1\r\nx\r\n0\r\n\r\n", 1 << 16)
    assert (caught.value.status, caught.value.message) == (
        400,
        "Chunked request body exceeds maximum of 65536 non-empty chunks. Send fewer or larger HTTP chunks.",
    )
    with pytest.raises(HttpError) as caught:
        feed_in_pieces(b"ffffffffffffffff\r\n", 100, limit=10)
    assert caught.value.status == 413


def test_response_heads() -> None:
    assert response_head(200, b"A: b\r\n", 3, True) == b"HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 3\r\n\r\n"
    assert response_head(503, b"", None, False) == (
        b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    )


def test_header_cache_is_bounded() -> None:
    cache = HeaderCache[int](max_entries=3, max_key_bytes=4, max_bytes=8)
    for number in range(10):
        cache.put(b"%d" % number, number)
    assert (len(cache), cache.get(b"9"), cache.get(b"0")) == (3, 9, None)
    cache.put(b"12345", 1)
    assert cache.get(b"12345") is None
    cache.put(b"abcd", 1)
    cache.put(b"efgh", 2)
    assert len(cache) == 2
