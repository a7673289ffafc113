"""Memory for large arrays, from wherever the process that this is has a use for them.

A replica makes them in shared memory (`app/transport/memory/shared_pool.py`): what a model returns of them
then leaves without a copy. Backends know nothing of that.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt


class OwnedArray(np.ndarray[Any, np.dtype[np.uint8]]):
    """Memory made here, which nobody else has: who holds its only view holds it alone."""


def private(nbytes: int) -> memoryview:
    """Memory of this process's own: aligned for every data type, and not cleared first."""
    return np.empty(nbytes, np.uint8).view(OwnedArray).data


_make: Callable[[int], memoryview] = private


def set_allocator(make: Callable[[int], memoryview]) -> None:
    """Have arrays made in what `make` returns: writable memory of so many bytes, there as long as a view."""
    global _make
    _make = make


def writable_copy(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A contiguous copy of a numeric array that is not empty, in a `OwnedArray`."""
    copy = np.frombuffer(_make(array.nbytes), array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
