"""The one table of tensor data types: v2 wire name, model configuration name, numpy dtype, element size.

Wire layout is little-endian and row-major. BYTES elements are a u32 length followed by that many bytes
(Open Inference Protocol, binary tensor data extension). numpy has no bfloat16: BF16 arrays are the raw
16-bit patterns as uint16; arrays of `ml_dtypes.bfloat16`, as tritonclient has them, are accepted.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from app.core.errors import invalid_arg

Buffer = bytes | bytearray | memoryview


class DataType(NamedTuple):
    """One row of the table; `itemsize` is 0 for BYTES, whose elements vary in size."""

    name: str
    config_name: str
    dtype: np.dtype[np.generic]
    itemsize: int


def _row(name: str, config_name: str, dtype: npt.DTypeLike, itemsize: int | None = None) -> DataType:
    resolved = np.dtype(dtype)
    return DataType(name, config_name, resolved, resolved.itemsize if itemsize is None else itemsize)


_ROWS: Final = (
    _row("BOOL", "TYPE_BOOL", np.bool_),
    _row("UINT8", "TYPE_UINT8", np.uint8),
    _row("UINT16", "TYPE_UINT16", np.uint16),
    _row("UINT32", "TYPE_UINT32", np.uint32),
    _row("UINT64", "TYPE_UINT64", np.uint64),
    _row("INT8", "TYPE_INT8", np.int8),
    _row("INT16", "TYPE_INT16", np.int16),
    _row("INT32", "TYPE_INT32", np.int32),
    _row("INT64", "TYPE_INT64", np.int64),
    _row("FP16", "TYPE_FP16", np.float16),
    _row("FP32", "TYPE_FP32", np.float32),
    _row("FP64", "TYPE_FP64", np.float64),
    _row("BYTES", "TYPE_STRING", np.object_, 0),
    _row("BF16", "TYPE_BF16", np.uint16),
)

DATATYPES: Final[dict[str, DataType]] = {row.name: row for row in _ROWS}
BY_CONFIG_NAME: Final[dict[str, DataType]] = {row.config_name: row for row in _ROWS}
_BY_DTYPE: Final[dict[np.dtype[np.generic], str]] = {
    row.dtype: row.name for row in _ROWS if row.name not in ("BYTES", "BF16")
}


def datatype_of(array: npt.NDArray[np.generic]) -> str:
    """Return the v2 name for an array's dtype; object, `S` and `U` are BYTES, `ml_dtypes.bfloat16` is BF16.

    Raises:
        InferError: INVALID_ARG when no v2 data type corresponds.
    """
    name = _BY_DTYPE.get(array.dtype)
    if name is not None:
        return name
    if array.dtype.kind in "OSU":
        return "BYTES"
    if is_bfloat16(array):
        return "BF16"
    raise invalid_arg(f"no data type corresponds to numpy dtype '{array.dtype}'")


def is_bfloat16(array: npt.NDArray[np.generic]) -> bool:
    """Return whether an array has the type that `ml_dtypes` adds to numpy."""
    return array.dtype.name == "bfloat16"


class StringPasses:
    """What splits and joins strings in one pass where a process has it compiled; else it returns None.

    Attributes:
        split: returns the elements of wire bytes, as `str` (True) or `bytes`.
        join: returns the wire bytes of a list of `bytes` and `str`.
    """

    is_compiled = False

    def __init__(self) -> None:
        self.split: Callable[[Buffer, bool], list[Any] | None] = _none_split
        self.join: Callable[[list[Any]], bytes | None] = _none_joined

    def use_compiled(
        self,
        split: Callable[[Buffer, bool], list[Any] | None],
        join: Callable[[list[Any]], bytes | None],
    ) -> None:
        """Have C do most of both; what it returns None for is read or written, or refused, by Python."""
        self.split, self.join = split, join
        self.is_compiled = True


def _none_split(_data: Buffer, _is_text: bool) -> None:
    return None


def _none_joined(_elements: list[Any]) -> None:
    return None


STRINGS: Final = StringPasses()
"""Those of this process."""


def pack_bytes(elements: Iterable[bytes | str]) -> bytes:
    """Join elements, each behind its u32 little-endian length; str elements are encoded as UTF-8."""
    if isinstance(elements, list):
        joined = STRINGS.join(elements)
        if joined is not None:
            return joined
    parts: list[bytes] = []
    for element in elements:
        raw = element.encode() if isinstance(element, str) else bytes(element)
        parts.append(len(raw).to_bytes(4, "little"))
        parts.append(raw)
    return b"".join(parts)


def unpack_bytes(data: Buffer, expected: int | None = None) -> list[bytes]:
    """Split length-prefixed elements; the cost is bounded by `len(data)`, whatever the prefixes say.

    Args:
        data: the wire bytes of a BYTES tensor.
        expected: element count the shape promises; not checked when None.

    Raises:
        InferError: INVALID_ARG when a prefix runs past the end or the count differs.
    """
    found = STRINGS.split(data, False)
    if found is not None and expected in (None, len(found)):
        return found
    elements: list[bytes] = []
    position, end = 0, len(data)
    while position < end:
        if position + 4 > end:
            raise invalid_arg("incomplete string length indicator")
        length = int.from_bytes(data[position : position + 4], "little")
        position += 4
        if position + length > end:
            raise invalid_arg("incomplete string data")
        elements.append(bytes(data[position : position + length]))
        position += length
    if expected is not None and len(elements) != expected:
        raise invalid_arg(f"expected {expected} string elements, got {len(elements)}")
    return elements


def unpack_text(data: Buffer, expected: int) -> list[str]:
    """Split the elements of a BYTES tensor as text; see `unpack_bytes`.

    Raises:
        InferError: INVALID_ARG as there.
        UnicodeDecodeError: an element is no UTF-8.
    """
    found = STRINGS.split(data, True)
    if found is not None and len(found) == expected:
        return found
    return [element.decode() for element in unpack_bytes(data, expected)]
