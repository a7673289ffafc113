"""Content codings of HTTP bodies: gzip and deflate."""

import zlib
from collections.abc import Iterable
from typing import Any, Final

from app.core.errors import InferError, invalid_arg

_GZIP_OR_ZLIB: Final = zlib.MAX_WBITS | 32  # detected from the data
_CHUNK: Final = 32 << 10
_USUAL_RATIO: Final = 8


def decompress(data: Any, limit: int) -> bytes:
    """Decompress a gzip or zlib body, stopping at the limit.

    Raises:
        InferError: INVALID_ARG when it is empty, broken, or larger than `limit` bytes decompressed.
    """
    if not data:
        raise invalid_arg("nothing to be decompressed")
    try:
        inflater = zlib.decompressobj(_GZIP_OR_ZLIB)
        inflated = inflater.decompress(data, _USUAL_RATIO * len(data) + _CHUNK)
        if not inflater.eof:
            # A decompression bomb or very repetitive data: measure it before allocating the result.
            inflated = zlib.decompress(data, _GZIP_OR_ZLIB, _decompressed_size(data, limit))
    except zlib.error:
        raise invalid_arg("failed to decompress the request body") from None
    if len(inflated) > limit:
        raise _too_large(limit)
    return inflated


def _decompressed_size(data: Any, limit: int) -> int:
    inflater = zlib.decompressobj(_GZIP_OR_ZLIB)
    size = 0
    for start in range(0, len(data), _CHUNK):
        chunk = data[start : start + _CHUNK]
        while chunk and not inflater.eof:
            size += len(inflater.decompress(chunk, _CHUNK))
            if size > limit:
                raise _too_large(limit)
            chunk = inflater.unconsumed_tail
    return size or 1


def _too_large(limit: int) -> InferError:
    return invalid_arg(
        f"Decompressed data size exceeds the maximum allowed value of {limit} bytes. "
        "Use --http-max-input-size to increase the limit."
    )


def response_encoding(accept: str | None) -> str:
    """Choose gzip, deflate or "" (none) from an `Accept-Encoding` header, the first of the highest weight."""
    chosen, highest = "", 0.0
    for entry in (accept or "").split(","):
        name, _, weight_text = entry.strip(" ").partition(";q=")
        try:
            weight = float(weight_text) if weight_text else 1.0
        except ValueError:
            continue
        if name in ("identity", "deflate", "gzip") and weight > highest:
            chosen, highest = ("" if name == "identity" else name), weight
    return chosen


def compress(parts: Iterable[Any], encoding: str) -> bytes:
    """Compress body parts as one gzip or deflate (zlib) stream."""
    deflater = zlib.compressobj(wbits=zlib.MAX_WBITS | (16 if encoding == "gzip" else 0))
    return b"".join([*map(deflater.compress, parts), deflater.flush()])
