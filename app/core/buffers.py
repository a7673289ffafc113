"""Allocation of large arrays, by an allocator that each process chooses.

A replica allocates them in shared memory (`app/transport/memory/shared_pool.py`), from which a model's
outputs are sent without a copy. Backends need not know.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt


class OwnedArray(np.ndarray[Any, np.dtype[np.uint8]]):
    """Memory allocated by this process: the only view of it is the only access to it."""


def allocate_private(nbytes: int) -> memoryview:
    """Allocate private memory of `nbytes`, aligned for every data type and not zeroed."""
    return np.empty(nbytes, np.uint8).view(OwnedArray).data


_allocate: Callable[[int], memoryview] = allocate_private


def set_allocator(allocate: Callable[[int], memoryview]) -> None:
    """Set the function that allocates writable memory of so many bytes, valid as long as any view of it."""
    global _allocate
    _allocate = allocate


def allocate(nbytes: int) -> memoryview:
    """Allocate writable memory that is valid as long as any view of it, and not zeroed."""
    return _allocate(nbytes)


def writable_copy(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a contiguous copy of a numeric array that is not empty, in an `OwnedArray`."""
    copy = np.frombuffer(_allocate(array.nbytes), array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
