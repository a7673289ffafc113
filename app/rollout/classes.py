"""Which classes a version answers with, for a rollout to compare the mix of both versions."""

from collections.abc import Sequence
from typing import Final

from app.core.errors import InferError
from app.core.tensors import RegionSlice, Tensor

_MOST_ROWS: Final = 64
_MOST_VALUES: Final = 4096
_LETTERS: Final = 64
ANY: Final = "*"
"""The first output that has classes."""


def classes_of(outputs: Sequence[Tensor], wanted: str, batched: bool) -> list[str]:
    """Return the class of each row of an answer, of the first rows of many; [] where it has none.

    Args:
        outputs: of the answer.
        wanted: the output's name, or `ANY`: the first whose rows are several floats, or one whole number or
            text.
        batched: whether the first dimension is that of rows.
    """
    for tensor in outputs:
        if wanted in (ANY, tensor.name) and type(tensor.data) is not RegionSlice:
            found = _classes(tensor, batched)
            if found or wanted != ANY:
                return found
    return []


def _classes(tensor: Tensor, batched: bool) -> list[str]:
    try:
        values = tensor.array()
    except (InferError, ValueError):
        return []
    rows = len(values) if batched and values.ndim else 1
    if not rows or not values.size:
        return []
    table = values.reshape(rows, -1)[:_MOST_ROWS]
    width = table.shape[1]
    if table.dtype.kind == "f" and 1 < width <= _MOST_VALUES:
        return [str(number) for number in table.argmax(axis=1).tolist()]
    if table.dtype.kind in "iubO" and width == 1:
        return [_named(value) for value in table[:, 0].tolist()]
    return []


def _named(value: bytes | int | bool) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return text[:_LETTERS]
