"""Memory for large arrays, from wherever the process that this is has a use for them.

A replica makes them in shared memory (`app/transport/workspace.py`): what a model returns of them then leaves
without a copy. Backends know nothing of that.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt


def _private(nbytes: int) -> memoryview:
    return np.empty(nbytes, np.uint8).data


_make: Callable[[int], memoryview] = _private


def make_with(make: Callable[[int], memoryview]) -> None:
    """Have arrays made in what `make` returns: writable memory of so many bytes, there as long as a view."""
    global _make
    _make = make


def writable_copy(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A contiguous copy of a numeric array; its memory is held by the copy and its views alone."""
    copy: npt.NDArray[Any] = np.ndarray(array.shape, array.dtype, _make(array.nbytes))
    copy[...] = array
    return copy
