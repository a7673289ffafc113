"""Binary tensors as SageMaker and Vertex AI allow them: the length of the JSON part is in the content type.

Their proxies pass a request's content type on, but no header of Triton's. Responses of Vertex AI have the
header all the same. Texts are tritonserver's (src/sagemaker_server.cc, src/vertex_ai_server.cc).
"""

import re
from typing import Final

from app.core.errors import invalid_arg
from app.protocol.http.http1 import RequestHead

_LENGTH: Final = b"inference-header-content-length"
_RESPONSE: Final = re.compile(rb"Content-Type: [^\r]*\r\nInference-Header-Content-Length: (\d+)\r\n")
_LEADING_NUMBER: Final = re.compile(r"\s*([+-]?[0-9]+)")
_DROPPED: Final = frozenset({_LENGTH, b"accept-encoding"})
"""Headers without a meaning in these protocols: the one is said otherwise, responses are not compressed."""


def media_type(platform: str) -> str:
    """Return the beginning of the content type of binary tensors, up to the length of the JSON part."""
    return f"application/vnd.{platform}-triton.binary+json;json-header-size="


def v2_head(head: RequestHead, path: str, binary: str, method: str = "") -> RequestHead:
    """Return the head of the v2 request that a request of a platform stands for.

    Args:
        head: as it was received.
        path: of the v2 request.
        binary: see `media_type`.
        method: of the v2 request, if another.

    Raises:
        InferError: INVALID_ARG for a content type that begins otherwise or has no number.
    """
    kept = [pair for pair in zip(head.names, head.headers, strict=True) if pair[1][0] not in _DROPPED]
    content_type = head.get(b"content-type") or ""
    if binary in content_type:
        length = _json_length(content_type, binary)
        kept.append((_LENGTH.title(), (_LENGTH, length.encode())))
    names, headers = tuple(name for name, _ in kept), tuple(header for _, header in kept)
    return head._replace(path=path, names=names, headers=headers, method=method or head.method)


def _json_length(content_type: str, binary: str) -> str:
    if not content_type.startswith(binary):
        raise invalid_arg(f"expect MIME type for binary data starts with '{binary}', got: {content_type}")
    given = content_type.removeprefix(binary)
    number = _LEADING_NUMBER.match(given)
    if number is None:
        raise invalid_arg(f"Unable to parse inference header size, got: {given}")
    if not -(1 << 31) <= int(number[1][:20]) < 1 << 31:
        raise invalid_arg(f"Unable to parse inference header size, value is out of range, got: {given}")
    return number[1]


def platform_headers(headers: bytes, binary: str) -> bytes:
    """Return the header lines of a v2 response as a platform has them."""
    return _RESPONSE.sub(rb"Content-Type: " + binary.encode() + rb"\1\r\n", headers, count=1)
