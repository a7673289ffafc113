"""Columns of tables as inputs of models, and outputs of models as columns."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from app.core.datatypes import DATATYPES
from nereid.offline.arrow import numbers, texts
from nereid.offline.blocks import AS_JSON, InputError

Array = npt.NDArray[Any]


class Wanted(NamedTuple):
    """An input of a model.

    Attributes:
        name: of the input.
        columns: where its values are; several are joined, in this order.
        datatype: as in the protocol, such as FP32.
        shape: of a row; -1 for any size.
        optional: whether a row may have none.
    """

    name: str
    columns: tuple[str, ...]
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False


Values = Sequence[Array | None] | Array
"""Of an input, by row; None where a row has none of an optional input."""


def row_values(table: pa.Table, wanted: Wanted, errors: dict[int, str]) -> Values:
    """Return the value of each row, as one array with a row in front where all have one shape.

    Lists have the shape that the column `NAME.shape` gives them, or else that of the model. Rows that have no
    value get an entry in `errors`, and any value.

    Raises:
        InputError: there is no such column.
    """
    missing = [name for name in wanted.columns if name not in table.column_names]
    if missing:
        raise InputError(
            f"input '{wanted.name}' needs a column '{missing[0]}', and the columns are"
            f" {', '.join(table.column_names)}: --map {wanted.name}=COLUMN names another, or several, A,B,C"
        )
    columns = [table[name].combine_chunks() for name in wanted.columns]
    if len(columns) == 1 and _regular(columns[0], wanted):
        return _block(columns[0], wanted)
    if len(columns) > 1 and _joinable(columns, wanted):
        return _joined(columns, wanted)
    return _each(list(_rows(table, columns, wanted)), wanted, errors)


def _rows(table: pa.Table, columns: Sequence[Any], wanted: Wanted) -> Iterator[Any]:
    """Yield the value of each row: that of the column, or a list of those of several columns."""
    read = [
        [None if value is None else json.loads(value) for value in column.to_pylist()]
        if table.schema.field(name).metadata == AS_JSON
        else _values(column)
        for name, column in zip(wanted.columns, columns, strict=True)
    ]
    if len(read) == 1:
        shape = f"{wanted.columns[0]}.shape"
        if shape not in table.column_names:
            yield from read[0]
        else:
            for values, sizes in zip(read[0], table[shape].to_pylist(), strict=True):
                yield values if values is None or sizes is None else Shaped(values, sizes)
        return
    for row in zip(*read, strict=True):
        empty = [name for name, value in zip(wanted.columns, row, strict=True) if value is None]
        yield Missing(empty[0]) if empty else _flat(row)


def _values(column: Any) -> list[Any]:
    """Return the values of a column; lists of numbers as arrays, which takes a hundredth of the time."""
    kind = column.type
    if not pa.types.is_list(kind) or not _numeric(kind.value_type) or column.values.null_count:
        return list(column.to_pylist())
    flat, ends = column.values.to_numpy(zero_copy_only=False), column.offsets.to_numpy()
    missing = column.is_null().to_numpy(zero_copy_only=False)
    return [
        None if none else flat[start:end]
        for none, start, end in zip(missing, ends[:-1], ends[1:], strict=True)
    ]


class Shaped(NamedTuple):
    """The values of a row in row-major order, and their shape."""

    values: Any
    shape: Sequence[int]


class Missing(NamedTuple):
    """What a row has in place of a value, of whose columns one is empty."""

    column: str


def _flat(row: Iterable[Any]) -> list[Any]:
    """Return the values of several columns, of which some may be lists, one after the other."""
    return [each for value in row for each in (value if isinstance(value, list | np.ndarray) else [value])]


def _joinable(columns: Sequence[Any], wanted: Wanted) -> bool:
    """Whether columns are numbers without gaps, as many as the input has elements."""
    if wanted.datatype == "BYTES" or not all(_numeric(each.type) and not each.null_count for each in columns):
        return False
    fixed = int(np.prod([size for size in wanted.shape if size != -1], dtype=np.int64))
    return fixed == len(columns) if -1 not in wanted.shape else wanted.shape == (-1,)


def _joined(columns: Sequence[Any], wanted: Wanted) -> Array:
    typed = [_typed(each.to_numpy(zero_copy_only=False), wanted) for each in columns]
    rows = np.stack(typed, axis=1)
    return rows if -1 in wanted.shape else rows.reshape(len(rows), *wanted.shape)


def _regular(column: Any, wanted: Wanted) -> bool:
    """Whether the column is numbers, or lists of numbers of one size, without gaps."""
    if column.null_count or wanted.datatype == "BYTES" or -1 in wanted.shape:
        return False
    values, size = column, int(np.prod(wanted.shape, dtype=np.int64))
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        values = column.flatten()
        lengths = np.diff(column.offsets.to_numpy())
        if (lengths != size).any():
            return False
    elif pa.types.is_fixed_size_list(column.type):
        values = column.flatten()
    return not values.null_count and _numeric(values.type) and len(values) == size * len(column)


def _numeric(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _block(column: Any, wanted: Wanted) -> Array:
    flat = column if _numeric(column.type) else column.flatten()
    values = flat.to_numpy(zero_copy_only=False)
    return _typed(values, wanted).reshape(len(column), *wanted.shape)


def _each(rows: list[Any], wanted: Wanted, errors: dict[int, str]) -> list[Array | None]:
    values: list[Array | None] = []
    for number, value in enumerate(rows):
        try:
            values.append(None if value is None and wanted.optional else _row(value, wanted))
        except (ValueError, TypeError, OverflowError) as error:
            which = f"column{'s' if len(wanted.columns) > 1 else ''} '{', '.join(wanted.columns)}'"
            errors.setdefault(number, f"{which} of input '{wanted.name}': {error}")
            values.append(np.empty(0))
    return values


def _row(value: Any, wanted: Wanted) -> Array:
    if value is None or isinstance(value, Missing):
        raise ValueError("there is no value" + (f" in '{value.column}'" if value else ""))
    values, shape = value if isinstance(value, Shaped) else (value, None)
    if wanted.datatype == "BYTES":
        array = np.array(_encoded(values), np.object_)
    else:
        array = _typed(np.asarray(values), wanted)
    if shape is not None:
        array = array.reshape(shape)
    fixed = [size for size in wanted.shape if size != -1]
    if array.ndim != len(wanted.shape) and len(fixed) >= len(wanted.shape) - 1:
        array = array.reshape(wanted.shape)
    if array.ndim != len(wanted.shape) or any(
        size not in (-1, found) for size, found in zip(wanted.shape, array.shape, strict=True)
    ):
        raise ValueError(f"the shape is {list(array.shape)}, and the model's {list(wanted.shape)}")
    return array


def _encoded(value: Any) -> Any:
    if isinstance(value, list | np.ndarray):
        return [_encoded(each) for each in value]
    return value if isinstance(value, bytes) else str(value).encode()


def _typed(values: Array, wanted: Wanted) -> Array:
    if wanted.datatype == "BF16":
        raise ValueError("inputs of datatype BF16 cannot be read from columns")
    kind = DATATYPES[wanted.datatype].dtype
    if values.dtype == kind:
        return values
    if values.dtype.kind not in "biuf":
        raise ValueError(f"its values are no numbers, and the datatype is {wanted.datatype}")
    converted = values.astype(kind)
    if kind.kind in "biu" and not np.array_equal(converted, values):
        raise ValueError(f"its values do not fit {wanted.datatype}")
    return converted


def element_type(datatype: str) -> Any:
    """Return the type of a column's elements; BF16 becomes float32, which has all its values."""
    if datatype == "BYTES":
        return pa.binary()
    return pa.float32() if datatype == "BF16" else pa.from_numpy_dtype(DATATYPES[datatype].dtype)


def output_column(rows: Sequence[Array | None], datatype: str, dims: Sequence[int]) -> Any:
    """Return an output of rows as a column, null for None.

    Its type depends on the model alone: single elements where it gives each row one, lists as deep as `dims`
    elsewhere.
    """
    given = [row for row in rows if row is not None]
    mask = np.array([row is None for row in rows], np.bool_)
    flat = np.concatenate([row.ravel() for row in given]) if given else np.empty(0, np.object_)
    if datatype == "BF16":
        flat = (flat.astype(np.uint32) << 16).view(np.float32)
    kind = element_type(datatype)
    if not given:
        values = pa.nulls(0, kind)
    else:
        values = texts(flat.tolist(), kind) if flat.dtype == np.object_ else numbers(flat)
    if list(dims) == [1]:
        return values.take(numbers(np.cumsum(~mask) - 1, mask))
    for depth in range(len(dims) - 1, -1, -1):
        lengths = _lengths(rows, depth)
        offsets = numbers(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
        values = pa.ListArray.from_arrays(offsets, values, mask=numbers(mask) if depth == 0 else None)
    return values


def _lengths(rows: Sequence[Array | None], depth: int) -> Array:
    """Return the lengths of the lists at this depth; those of rows without a value have none at depth 0."""
    if depth == 0:
        return np.array([0 if row is None else row.shape[0] for row in rows], np.int64)
    each = [np.full(int(np.prod(row.shape[:depth])), row.shape[depth]) for row in rows if row is not None]
    return np.concatenate([np.empty(0, np.int64), *each])
