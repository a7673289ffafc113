"""The errors of the in-process API, named as in Triton's."""

from typing import Final

from app.core.errors import ErrorCode, Failure, InferError
from app.settings.flag.errors import SettingsError
from backends.python.api.errors import TritonModelException


class TritonError(Exception):
    """A failed operation of the server; its subclasses are the codes of Triton's C API."""


class UnknownError(TritonError):
    """A failure without a known cause."""


class InternalError(TritonError):
    """A failure that the caller did not cause."""


class NotFoundError(TritonError):
    """A name that does not exist."""


class InvalidArgumentError(TritonError):
    """A request that can never succeed."""


class UnavailableError(TritonError):
    """A name that exists but cannot be served now."""


class UnsupportedError(TritonError):
    """Something that the server or the model does not support."""


class AlreadyExistsError(TritonError):
    """A name that is taken."""


class CancelledError(TritonError):
    """A request that was cancelled."""


_KINDS: Final[dict[ErrorCode, type[TritonError]]] = {
    ErrorCode.INTERNAL: InternalError,
    ErrorCode.NOT_FOUND: NotFoundError,
    ErrorCode.INVALID_ARG: InvalidArgumentError,
    ErrorCode.UNAVAILABLE: UnavailableError,
    ErrorCode.UNSUPPORTED: UnsupportedError,
    ErrorCode.ALREADY_EXISTS: AlreadyExistsError,
    ErrorCode.CANCELLED: CancelledError,
}


def error_of(failure: Failure) -> TritonError:
    """Return the error to raise for a failure."""
    return _KINDS.get(failure.code, UnknownError)(failure.message)


class _TritonErrors:
    """A context that raises the errors of this API in place of the server's own."""

    __slots__ = ()

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, InferError):
            raise error_of(error.failure) from None
        if isinstance(error, SettingsError | TritonModelException):
            raise InvalidArgumentError(str(error)) from None


_TRITON_ERRORS: Final = _TritonErrors()


def triton_errors() -> _TritonErrors:
    """Return the context that raises the errors of this API in place of the server's own."""
    # One object without state: a generator's context costs a request three times as much.
    return _TRITON_ERRORS
