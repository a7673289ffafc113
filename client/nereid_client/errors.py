"""What a call of a server may raise."""

from __future__ import annotations

from typing import Final

_HTTP_CODES: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "ALREADY_EXISTS",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class InputError(ValueError):
    """Values that the model cannot take, found before anything was sent."""


class ServerError(Exception):
    """An answer that is an error.

    Attributes:
        code: name of the gRPC status, over HTTP too, e.g. "NOT_FOUND".
        message: the server's own text.
        retry_after: seconds after which the server asks to be called again; 0 if it does not say.
    """

    def __init__(self, code: str, message: str, retry_after: float = 0.0) -> None:
        super().__init__(f"[{code}] {message}")
        self.code, self.message, self.retry_after = code, message, retry_after


class Unavailable(ServerError):
    """The server cannot be reached, or cannot answer now. Calls that may be repeated were repeated."""


class Unreachable(Unavailable):
    """No connection to the server came about."""


class DeadlineExceeded(ServerError):
    """There was no answer in time."""


def server_error(code: str, message: str, retry_after: float = 0.0) -> ServerError:
    """Return the exception for a gRPC status."""
    kind = {"UNAVAILABLE": Unavailable, "DEADLINE_EXCEEDED": DeadlineExceeded}.get(code, ServerError)
    return kind(code, message, retry_after)


def http_error(status: int, message: str, retry_after: float = 0.0) -> ServerError:
    """Return the exception for an HTTP status."""
    return server_error(_HTTP_CODES.get(status, "INTERNAL"), message, retry_after)
