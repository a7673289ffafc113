"""Arrays of Arrow, of values whose type is known.

`pyarrow.array` imports pandas to look at values, which takes half a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_LARGEST: Final = 2**31 - 1
"""Bytes of an array with offsets of 32 bits."""


def numbers(values: npt.NDArray[Any], missing: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return numbers or booleans as an array; null where they are missing."""
    bits = values.dtype == np.bool_
    data = np.packbits(values, bitorder="little") if bits else np.ascontiguousarray(values)
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [_valid(missing), pa.py_buffer(data)])


def texts(values: Sequence[str | bytes | None], kind: pa.DataType) -> pa.Array:
    """Return texts or bytes as an array of a type: string, binary, or a large one; null for None."""
    encoded = [value.encode() if isinstance(value, str) else value or b"" for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    if not _is_large(kind):
        if ends[-1] > _LARGEST:
            return pa.array(values, kind)  # in chunks
        ends = ends.astype(np.int32)
    missing = np.array([value is None for value in values], np.bool_)
    buffers = [_valid(missing), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(kind, len(values), buffers)


def _is_large(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


def _valid(missing: npt.NDArray[np.bool_] | None) -> pa.Buffer | None:
    if missing is None or not missing.any():
        return None
    return pa.py_buffer(np.packbits(~missing, bitorder="little"))
