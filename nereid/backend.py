"""The classes and functions that a custom backend is written with (docs/develop/backends.md)."""

from nereid.internals import load_internals

load_internals()

# After the call, which decides whose packages these are.
from app.core.errors import InferError, internal, invalid_arg, not_found, unavailable, unsupported  # noqa: E402
from app.core.tensors import InferRequest, InferResponse, Tensor, failed  # noqa: E402
from backends.array_backend import ArrayBackend  # noqa: E402
from backends.base import Backend, Instance, Model, Request, SecondaryDevice  # noqa: E402
from backends.description import BackendDescription, FileKind, ModelFormat  # noqa: E402

__all__ = [
    "ArrayBackend",
    "Backend",
    "BackendDescription",
    "FileKind",
    "InferError",
    "InferRequest",
    "InferResponse",
    "Instance",
    "Model",
    "ModelFormat",
    "Request",
    "SecondaryDevice",
    "Tensor",
    "failed",
    "internal",
    "invalid_arg",
    "not_found",
    "unavailable",
    "unsupported",
]
