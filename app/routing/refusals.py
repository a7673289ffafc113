"""Why no version answers a request, in Triton's words."""

from typing import Final

from app.core.errors import ErrorCode, InferError, not_found, unavailable

RETRY_S: Final = 1.0
"""When to ask again for a model that is loading."""


def unknown_text(name: str) -> str:
    """Return what is said of a model that nobody knows."""
    return f"Request for unknown model: '{name}' is not found"


def unknown(name: str, initialised: bool) -> InferError:
    """Return the error for a model that nobody knows, or not yet while the models of the start load."""
    return not_found(unknown_text(name)) if initialised else _loading(unknown_text(name), "models are")


def no_version(name: str, loading: int | None) -> InferError:
    """Return the error for a model without a version that is ready; `loading` is one that will be."""
    text = f"Request for unknown model: '{name}' has no available versions"
    return not_found(text) if loading is None else _loading(text, f"version {loading} is")


def not_ready(name: str, version: int, why: str = "") -> InferError:
    """Return the error for a version that is not ready, or has no usable replica."""
    text = f"Request for unknown model: '{name}' version {version} is not at ready state"
    return unavailable(f"{text}: {why}" if why else text)


def _loading(text: str, what: str) -> InferError:
    """Return an error by which a client tries again; Triton's text is NOT_FOUND, which says not to."""
    return InferError(ErrorCode.UNAVAILABLE, f"{text}: {what} loading", retry_after_s=RETRY_S)
