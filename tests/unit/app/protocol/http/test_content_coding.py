"""Compressed bodies of requests and responses."""

import gzip
import zlib
from typing import Any

import pytest

from app.core.errors import InferError
from app.protocol.http.content_coding import compress, decompress, response_encoding


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_decompression_stops_at_the_limit(pack: Any) -> None:
    assert decompress(pack(b"a" * 1000), 1000) == b"a" * 1000
    with pytest.raises(
        InferError, match="Decompressed data size exceeds the maximum allowed value of 999 bytes"
    ):
        decompress(pack(b"a" * 1000), 999)
    with pytest.raises(InferError):
        decompress(pack(b"a" * (64 << 20)), 1000)
    for broken in (pack(b"abc")[:-1], b"garbage", b""):
        with pytest.raises(InferError):
            decompress(broken, 1000)


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        (None, ""),
        ("", ""),
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("gzip, deflate", "gzip"),
        ("gzip;q=0.5, deflate;q=0.8", "deflate"),
        ("identity, gzip;q=0.9", ""),
        ("gzip;q=0", ""),
        ("br, *", ""),
        ("gzip;q=x, deflate;q=0.1", "deflate"),
        ("gzip;q=nan", ""),
    ],
)
def test_response_encoding(accept: str, chosen: Any) -> None:
    assert response_encoding(accept) == chosen


def test_compression_round_trip() -> None:
    parts = [b"abc", memoryview(b"d" * 1000)]
    assert gzip.decompress(compress(parts, "gzip")) == b"abc" + b"d" * 1000
    assert zlib.decompress(compress(parts, "deflate")) == b"abc" + b"d" * 1000
