"""Errors of Python models, in Triton's words."""

import traceback
from types import TracebackType
from typing import Final

from app.core.errors import (
    TRITON_CODES,
    ErrorCode,
    Failure,
    FailureReason,
    InferError,
    internal,
    text_of,
    triton_number,
)
from backends.python.api.text import as_text


class TritonError:
    """The error of one response: `InferenceResponse(error=TritonError("text", TritonError.INVALID_ARG))`."""

    UNKNOWN: Final = 0
    INTERNAL: Final = 1
    NOT_FOUND: Final = 2
    INVALID_ARG: Final = 3
    UNAVAILABLE: Final = 4
    UNSUPPORTED: Final = 5
    ALREADY_EXISTS: Final = 6
    CANCELLED: Final = 7

    __slots__ = ("_code", "_message")

    def __init__(self, message: str | bytes, code: int = INTERNAL) -> None:
        if not 0 <= code < len(TRITON_CODES):
            raise ValueError(f"unknown error code {code}")
        self._message = as_text(message)
        self._code = code

    @classmethod
    def _from_failure(cls, failure: Failure) -> "TritonError":
        return cls(failure.message, triton_number(failure.code))

    def message(self) -> str:
        """Return the text."""
        return self._message

    def code(self) -> int:
        """Return one of the codes of this class."""
        return self._code

    def _failure(self) -> Failure:
        return Failure(TRITON_CODES[self._code], self._message, FailureReason.BACKEND)

    def __str__(self) -> str:
        return self._message


class TritonModelException(Exception):
    """Exception of the functions of `pb_utils`, which models raise too."""

    def message(self) -> str:
        """Return the text."""
        return str(self)


class ContractError(Exception):
    """The model broke a rule of the interface; reported without a traceback."""


def execution_failed(instance_name: str, error: BaseException, skip: str) -> Failure:
    """Return the failure of every unanswered request of an execution that raised."""
    text = describe(error, skip)
    return Failure(
        ErrorCode.INTERNAL,
        f"Failed to process the request(s) for model '{instance_name}', message: {text}",
        FailureReason.BACKEND,
    )


def stub_failed(instance_name: str, text: str) -> Failure:
    """Return the failure of a request whose worker process ended, in Triton's words.

    The code, Triton's is INTERNAL, is that of a request whose replica ended: a client may repeat either.
    """
    return Failure(
        ErrorCode.UNAVAILABLE,
        f"Failed to process the request(s) for model instance '{instance_name}', message: {text}",
        FailureReason.BACKEND,
    )


def loading_failed(error: BaseException, skip: str) -> InferError:
    """Return the error of a model whose import or initialisation raised."""
    return error if isinstance(error, InferError) else internal(describe(error, skip))


def describe(error: BaseException, skip: str) -> str:
    """Return an exception in Triton's words: `ValueError: text`, and its frames, innermost first.

    Args:
        error: the exception.
        skip: frames of files under this folder (ours) are left out.
    """
    if isinstance(error, ContractError):
        return text_of(error)
    lines = [f"{type(error).__name__}: {text_of(error)}", "", "At:", *_frames(error.__traceback__, skip)]
    return "\n".join(lines) + "\n"


def _frames(trace: TracebackType | None, skip: str) -> list[str]:
    hidden = (skip, "<frozen ")
    frames = [frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith(hidden)]
    return [f"  {frame.filename}({frame.lineno}): {frame.name}" for frame in reversed(frames)]
