"""The one error family of the server.

Codes are those of Triton's `TRITONSERVER_Error_Code`. `app/protocol/status.py` is the only place that
maps them to HTTP and gRPC.
"""

from enum import Enum
from typing import Final

import msgspec

MAX_MESSAGE: Final = 16 << 10
"""Characters of an error's message: enough for a traceback. What clients sent is quoted in messages."""


def encodable(text: str) -> str:
    r"""Return a text that UTF-8 can encode, with escapes such as `\ud83d` for lone surrogates.

    Texts of models and clients and names of files may have them. Whatever reports a text passes it through
    here: what cannot be encoded must not take the place of what went wrong, or end a process. A text of a
    subclass, such as numpy's, becomes a plain one, as encoders want it.
    """
    if text.__class__ is not str:
        text = str.__str__(text)
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode()


def text_of(error: BaseException) -> str:
    """Return an exception's text, encodable; "" for one that cannot even say it."""
    try:
        return encodable(str(error))
    except Exception:  # of a `__str__` that a model has written
        return ""


def shortened(text: str, limit: int = MAX_MESSAGE) -> str:
    """Return an encodable text of at most `limit` characters, with "..." for the middle of a longer one."""
    text = encodable(text)
    if len(text) <= limit:
        return text
    kept = limit - 3
    return f"{text[: kept - kept // 2]}...{text[len(text) - kept // 2 :]}"


class ErrorCode(str, Enum):
    """Error codes, spelled and ordered as in Triton's C API; the last four are gRPC's, for clients."""

    UNKNOWN = "UNKNOWN"
    INTERNAL = "INTERNAL"
    NOT_FOUND = "NOT_FOUND"
    INVALID_ARG = "INVALID_ARG"
    UNAVAILABLE = "UNAVAILABLE"
    UNSUPPORTED = "UNSUPPORTED"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    CANCELLED = "CANCELLED"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"


TRITON_CODES: Final = tuple(ErrorCode)[:8]
"""The codes by their numbers in TRITONSERVER_Error_Code."""


def triton_number(code: ErrorCode) -> int:
    """Return the number of a code in TRITONSERVER_Error_Code; that of UNAVAILABLE for gRPC's codes."""
    return TRITON_CODES.index(code if code in TRITON_CODES else ErrorCode.UNAVAILABLE)


class FailureReason(str, Enum):
    """The `reason` label of `nv_inference_request_failure`."""

    REJECTED = "REJECTED"
    CANCELED = "CANCELED"
    BACKEND = "BACKEND"
    OTHER = "OTHER"


class Failure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Why a request failed: the value that responses, queues and frames carry.

    Exceptions are raised only where somebody catches them: they hold on to their frames, and those to the
    request's tensors, so one that is kept in a response or a constant is a leak.

    Attributes:
        message: encodable, and shortened if it is longer than `MAX_MESSAGE`.
        retry_after_s: when a client may try again, in seconds; 0 if nothing is known.
    """

    code: ErrorCode
    message: str
    reason: FailureReason = FailureReason.OTHER
    retry_after_s: float = 0.0

    def __post_init__(self) -> None:
        message = shortened(self.message)
        if message is not self.message:
            msgspec.structs.force_setattr(self, "message", message)

    @classmethod
    def from_exception(cls, error: BaseException) -> "Failure":
        """Return what an exception says; anything but an `InferError` is INTERNAL with its plain text."""
        if isinstance(error, InferError):
            return error.failure
        return cls(ErrorCode.INTERNAL, text_of(error) or type(error).__name__, FailureReason.BACKEND)

    def error(self) -> "InferError":
        """Return an exception to raise."""
        return InferError(self.code, self.message, self.reason, self.retry_after_s)


class InferError(Exception):
    """A failure with a code a client can act on, to be raised.

    All arguments go to `Exception.__init__` so that the error survives pickle with code and message intact.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        reason: FailureReason = FailureReason.OTHER,
        retry_after_s: float = 0.0,
    ) -> None:
        message = shortened(message)
        super().__init__(code, message, reason, retry_after_s)
        self.code = code
        self.message = message
        self.reason = reason
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return self.message

    @property
    def failure(self) -> Failure:
        """The value to keep or send in place of this exception."""
        return Failure(self.code, self.message, self.reason, self.retry_after_s)

    def with_code(self) -> str:
        """Return `Invalid argument: <message>`, as Triton's `Status::AsString` words failed loads."""
        return (
            f"{self.code.value.capitalize().replace('_arg', ' argument').replace('_', ' ')}: {self.message}"
        )


def invalid_arg(message: str) -> InferError:
    """Return the error of a request that can never succeed (HTTP 400)."""
    return InferError(ErrorCode.INVALID_ARG, message)


def internal(message: str) -> InferError:
    """Return an error that the client did not cause; Triton's for malformed JSON too (HTTP 500)."""
    return InferError(ErrorCode.INTERNAL, message)


def not_found(message: str) -> InferError:
    """Return the error of a name that does not exist (HTTP 404)."""
    return InferError(ErrorCode.NOT_FOUND, message)


def unavailable(message: str) -> InferError:
    """Return the error of a name that exists but cannot be served now (HTTP 503)."""
    return InferError(ErrorCode.UNAVAILABLE, message)


def unsupported(message: str) -> InferError:
    """Return the error of something that this server or model does not support (HTTP 501)."""
    return InferError(ErrorCode.UNSUPPORTED, message)
