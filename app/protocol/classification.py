"""The classification extension: the best classes of an output tensor, as text.

Each element is `<value>:<index>` or `<value>:<index>:<label>`. Values are formatted as by C++:
integers plainly, floating point with six decimals (`std::to_string`).
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from app.core.datatypes import pack_bytes
from app.core.errors import InferError, internal, invalid_arg
from app.core.tensors import Tensor

MAX_ELEMENTS: Final = 1_000_000

_INTEGERS: Final = frozenset(("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"))
_FLOATS: Final = frozenset(("FP32", "FP64"))


class ModelLabels(Protocol):
    """The part of a model version that classification reads."""

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:
        """Class labels by output; an output without a label file is absent."""

    @property
    def batched(self) -> bool:
        """Whether the first dimension of the outputs is a batch dimension."""

    def answering(self, version: str) -> "ModelLabels":
        """Return those of the version that has answered, which may be another than a rollout's stable one."""


def classify_output(model: ModelLabels, version: str, tensor: Tensor, count: int) -> Tensor:
    """Return the `count` best classes of an output of a model's version; see `classify`."""
    model = model.answering(version)
    return classify(tensor, count, model.labels.get(tensor.name, ()), model.batched)


def classify(tensor: Tensor, count: int, labels: Sequence[str] = (), batched: bool = False) -> Tensor:
    """Return the `count` best classes of each batch entry as a BYTES tensor.

    Args:
        tensor: integer, FP32 or FP64 values.
        count: number of classes, at least 1; capped at the number of classes there are.
        labels: label of each class index; indices past the end and empty labels add no label.
        batched: whether the first dimension is a batch dimension, whose entries are ranked separately.

    Returns:
        Shape `[min(count, n)]`, or `[batch, min(count, n)]` when `batched`.

    Raises:
        InferError: INVALID_ARG for another data type or too many elements, INTERNAL when the data does not
            fit the shape.
    """
    _check(tensor)
    batch = tensor.shape[0] if batched and tensor.shape else 0
    classes = prod(tensor.shape[1:] if batch else tensor.shape)
    rows = _rows(tensor, max(batch, 1), classes)
    kept = min(count, classes)
    texts = [text for row in rows for text in _best(row, kept, labels, tensor.datatype in _FLOATS)]
    shape = (batch, kept) if batch else (kept,)
    return Tensor(tensor.name, "BYTES", shape, pack_bytes(texts))


def _check(tensor: Tensor) -> None:
    if tensor.datatype not in _INTEGERS and tensor.datatype not in _FLOATS:
        raise invalid_arg(
            f"class result not available for output due to unsupported type '{tensor.datatype}'"
        )
    elements = prod(tensor.shape)
    if elements > MAX_ELEMENTS:
        raise invalid_arg(
            f"classification output tensor too large, it has {elements} elements "
            f"and the maximum is {MAX_ELEMENTS}"
        )


def _rows(tensor: Tensor, batch: int, classes: int) -> npt.NDArray[Any]:
    try:
        return tensor.array().reshape(batch, classes)
    except ValueError:
        raise _size_error(tensor.name) from None


def _size_error(name: str) -> InferError:
    return internal(f"output tensor shape does not match size of output for '{name}'")


def _best(row: npt.NDArray[Any], kept: int, labels: Sequence[str], is_float: bool) -> list[str]:
    order = _descending(row)[:kept].tolist()
    values = row[order].tolist()
    texts = []
    for index, value in zip(order, values, strict=True):
        text = f"{value:f}:{index}" if is_float else f"{value}:{index}"
        label = labels[index] if index < len(labels) else ""
        texts.append(f"{text}:{label}" if label else text)
    return texts


def _descending(row: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    # A stable ascending sort of the reversed row, read backwards, keeps ties in index order. Sorting the
    # negated row would fail for unsigned values and for the lowest signed one.
    reversed_order = np.argsort(row[::-1], kind="stable")[::-1]
    return np.asarray(row.size - 1 - reversed_order, dtype=np.intp)
