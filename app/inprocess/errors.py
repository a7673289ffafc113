"""The errors of the in-process API, named as in Triton's."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from app.core.errors import ErrorCode, Failure, InferError
from app.settings.errors import SettingsError
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


@contextmanager
def triton_errors() -> Iterator[None]:
    """Raise the errors of this API in place of the server's own."""
    try:
        yield
    except InferError as error:
        raise error_of(error.failure) from None
    except (SettingsError, TritonModelException) as error:
        raise InvalidArgumentError(str(error)) from None
