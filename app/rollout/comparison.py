"""Compares the outputs of two versions with each other. Pure.

A comparison blocks for as long as the tensors are large.
"""

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from app.core.tensors import Tensor

MAX_DIFFERENCE: Final = 1e30
"""The difference of what cannot be compared: other shapes, missing outputs, a number and none."""
_SMALLEST: Final = 1e-6
_FLOATS: Final = ("FP16", "FP32", "FP64", "BF16")


class Comparison(NamedTuple):
    """Of the outputs that differ most: by how much; and whether arg-max (of other than floats: value) agree.

    Floats differ by max |a - b| / max(|a|, 1e-6); others by 1 if they are not equal.
    """

    difference: float
    agrees: bool

    @classmethod
    def of(cls, stable: tuple[Tensor, ...], candidate: tuple[Tensor, ...]) -> "Comparison":
        """Compare all outputs of two responses, in whatever order."""
        others = {tensor.name: tensor for tensor in candidate}
        if others.keys() != {tensor.name for tensor in stable}:
            return cls(MAX_DIFFERENCE, False)
        found = [_compared(tensor, others[tensor.name]) for tensor in stable]
        return cls(max((each.difference for each in found), default=0.0), all(each.agrees for each in found))


_SAME: Final = Comparison(0.0, True)


def _compared(a: Tensor, b: Tensor) -> Comparison:
    if (a.datatype, a.shape) != (b.datatype, b.shape) or len(a.data) != len(b.data):
        return Comparison(MAX_DIFFERENCE, False)
    if np.array_equal(_words(a), _words(b)):
        return _SAME
    if a.datatype not in _FLOATS:
        return Comparison(1.0, False)
    x, y = _floats(a), _floats(b)
    return Comparison(_difference(x, y), bool(np.array_equal(_best(x), _best(y))))


def _words(tensor: Tensor) -> npt.NDArray[Any]:
    """Return the bytes of a tensor, eight at a time where they are a multiple: as few as there can be."""
    return np.frombuffer(tensor.data, np.uint8 if len(tensor.data) % 8 else np.uint64)


def _floats(tensor: Tensor) -> npt.NDArray[Any]:
    array = np.atleast_1d(tensor.array())
    if tensor.datatype == "BF16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32) if tensor.datatype == "FP16" else array


def _difference(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    with np.errstate(all="ignore"):
        parts = np.abs(a - b) / np.maximum(np.abs(a), _SMALLEST)
    parts[(a == b) | (np.isnan(a) & np.isnan(b))] = 0.0  # infinities too
    largest = float(parts.max(initial=0.0))
    return largest if largest < MAX_DIFFERENCE else MAX_DIFFERENCE  # also for NaN


def _best(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the index of the largest element of each row, which is what is along the last axis."""
    return np.asarray(np.argmax(array, axis=-1))
