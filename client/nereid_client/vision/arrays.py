"""What computes: numpy, OpenCV or PyTorch. Most functions are written once for arrays and tensors."""

import sys
from typing import Any, Final

import numpy as np

Array = Any
"""An array of numpy or a tensor of PyTorch on any device; PyTorch may be missing: its type is not named."""

BACKENDS: Final = ("numpy", "opencv", "torch")


def library(array: Array) -> Any:
    """Return the module whose functions take an array: `torch` for a tensor, otherwise `numpy`."""
    torch = sys.modules.get("torch")  # without it nobody has a tensor
    return torch if torch is not None and isinstance(array, torch.Tensor) else np


def backend_of(array: Array, backend: str | None) -> str:
    """Return the backend for an array: its own, or another that takes it and was asked for.

    Raises:
        ValueError: there is no such backend, or it does not take this array.
    """
    own = "numpy" if library(array) is np else "torch"
    if backend is None or backend == own:
        return own
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend '{backend}': expected one of {', '.join(BACKENDS)}")
    if (own, backend) != ("numpy", "opencv"):
        raise ValueError(
            f"backend '{backend}' does not take a {type(array).__module__}.{type(array).__name__}"
        )
    return backend


def constant(values: Any, like: Array) -> Array:
    """Return FP32 values of the library, and on the device, of an array."""
    xp = library(like)
    return xp.asarray(np.asarray(values, np.float32), device=like.device)


def as_type(array: Array, name: str) -> Array:
    """Convert an array to a data type that both libraries know by this name."""
    xp = library(array)
    return xp.asarray(array, dtype=getattr(xp, name))


def as_numpy(array: Array) -> Any:
    """Return an array, or a copy of a tensor, in the host's memory."""
    return array if library(array) is np else array.detach().cpu().numpy()
