"""Reusable host memory of an instance for its joined inputs, from which they are copied to the device."""

from collections.abc import Callable
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

_SMALLEST: Final = 4096


class HostBuffers:
    """One block for each input, which grows to the next power of two and never shrinks.

    Bounded by twice the bytes of the largest batch, which the model's batch size and the server's limit on
    request sizes bound.

    Args:
        allocate: returns a writable uint8 array of the given size; page-locked for copies to a GPU.
    """

    def __init__(self, allocate: Callable[[int], Array]) -> None:
        self._allocate = allocate
        self._blocks: dict[str, Array] = {}

    def __call__(self, name: str, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """Return an array at the start of the input's block, overwriting the previous one."""
        nbytes = prod(shape) * dtype.itemsize
        block = self._blocks.get(name)
        if block is None or len(block) < nbytes:
            block = self._blocks[name] = self._allocate(max(_SMALLEST, 1 << (nbytes - 1).bit_length()))
        return np.ndarray(shape, dtype, block)

    def copy_in(self, name: str, array: Array) -> Array:
        """Return the array itself if it lies in the input's block, else a copy there."""
        block = self._blocks.get(name)
        if block is not None and array.ctypes.data == block.ctypes.data and array.flags.c_contiguous:
            return array
        copy = self(name, array.shape, array.dtype)
        copy[...] = array
        return copy
