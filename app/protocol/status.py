"""HTTP and gRPC status codes of error codes.

HTTP statuses are those of Triton's HTTP front end, gRPC ones those of its gRPC front end. gRPC codes are
plain numbers, so that nothing here needs the gRPC library.
"""

from collections.abc import Mapping
from math import ceil
from typing import Final, NamedTuple

from app.core.errors import ErrorCode, Failure, FailureReason, InferError

_OVERLOADED: Final = 8
"""RESOURCE_EXHAUSTED, of an overloaded model. Stock clients may retry UNAVAILABLE at once, which would add to
the load; it is what they should do while a model is loading."""


class Status(NamedTuple):
    """The statuses of an error code."""

    http: int
    grpc: int


STATUSES: Final[dict[ErrorCode, Status]] = {
    ErrorCode.UNKNOWN: Status(400, 2),
    ErrorCode.INTERNAL: Status(500, 13),
    ErrorCode.NOT_FOUND: Status(404, 5),
    ErrorCode.INVALID_ARG: Status(400, 3),
    ErrorCode.UNAVAILABLE: Status(503, 14),
    ErrorCode.UNSUPPORTED: Status(501, 12),
    ErrorCode.ALREADY_EXISTS: Status(400, 6),
    ErrorCode.CANCELLED: Status(400, 1),
    ErrorCode.UNAUTHENTICATED: Status(401, 16),
    ErrorCode.PERMISSION_DENIED: Status(403, 7),
    ErrorCode.RESOURCE_EXHAUSTED: Status(429, 8),
    ErrorCode.DEADLINE_EXCEEDED: Status(504, 4),
}


def http_status(error: Failure | BaseException) -> int:
    """Return the HTTP status for a failure; an exception that is no `InferError` is 500."""
    return STATUSES[error.code].http if isinstance(error, Failure | InferError) else 500


def http_headers(error: Failure | InferError) -> Mapping[str, str]:
    """Return the headers that an HTTP response with a failure has because of it."""
    headers = {}
    if error.code is ErrorCode.UNAUTHENTICATED:
        headers["WWW-Authenticate"] = "Bearer"  # RFC 9110, section 15.5.2
    if error.retry_after_s:
        headers["Retry-After"] = str(ceil(error.retry_after_s))
    return headers


def grpc_status(error: Failure | BaseException) -> int:
    """Return the numeric gRPC status for a failure; an exception that is no `InferError` is INTERNAL (13)."""
    if not isinstance(error, Failure | InferError):
        return 13
    overloaded = error.code is ErrorCode.UNAVAILABLE and error.reason is FailureReason.REJECTED
    if error.retry_after_s and overloaded:
        return _OVERLOADED
    return STATUSES[error.code].grpc
