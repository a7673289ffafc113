"""Rows of a tape as tables of Arrow.

A column for each field, and `in.NAME` and `out.NAME` for tensors: lists of their values in row-major order,
beside `in.NAME.shape`. What was not kept is null. The metadata of a column has the datatype: BF16 is UINT16
there, as Parquet has no such type, and FP16 is FP32.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from app.core.datatypes import DATATYPES
from app.core.encoding import to_json
from nereid_client.tape.rows import KEPT, Row, TapeError, TapeTensor, elements

_GROUP_ROWS: Final = 5000
_GROUP_BYTES: Final = 32 << 20
"""Rows, or bytes of their tensors, of a table."""
_MOST_EMPTY: Final = 4096
"""Rows without elements of a request that are taken apart."""
_DATATYPES: Final = {name: row.dtype.name for name, row in DATATYPES.items()} | {
    "FP16": "float32",
    "BYTES": "binary",
}
"""The types of Arrow by datatype."""
_OTHERS: Final = {"number": "int32", "latency_ms": "float64", "probability": "float64", "score": "float64"}
"""Types of fields that are no texts."""


class Part(NamedTuple):
    """A row of a table: a request, or one row of its batch."""

    row: Row
    number: int
    tensors: Mapping[str, tuple[Any, tuple[int, ...]]]
    """Values, None if they were not kept, and shape, by column."""
    score: float | None


def datatypes(rows: Iterator[Row]) -> tuple[dict[str, str], int]:
    """Return the datatypes of the tensors' columns, and how many rows there are.

    Raises:
        TapeError: those of a column differ, or have no type of Arrow.
    """
    found: dict[str, str] = {}
    number = 0
    for row in rows:
        number += 1
        for name, tensor in named(row):
            known = found.setdefault(name, tensor.datatype)
            if known != tensor.datatype:
                raise TapeError(
                    f"'{name}' is {known} and, in row {row.key} of model '{row.model}', {tensor.datatype}: "
                    "export one of them, as by --where model=NAME"
                )
    unknown = sorted({*found.values()} - _DATATYPES.keys())
    if unknown:
        raise TapeError(f"tensors of {', '.join(unknown)} cannot be exported")
    return dict(sorted(found.items())), number


def named(row: Row) -> Iterator[tuple[str, TapeTensor]]:
    """Yield the tensors of a row and their columns."""
    yield from ((f"in.{tensor.name}", tensor) for tensor in row.inputs)
    yield from ((f"out.{tensor.name}", tensor) for each in row.responses for tensor in each.outputs)


def parts(rows: Iterator[Row], split: bool, score_of: Callable[[str], float | None]) -> Iterator[Part]:
    """Yield the rows of tables.

    Args:
        rows: of the tape, with their tensors.
        split: a row for each row of a request's batch, where all of its tensors have as many.
        score_of: returns what clients have said of a row, by its key.

    Raises:
        TapeError: the bytes of a tensor are not those of its datatype and shape.
    """
    for row in rows:
        score = score_of(row.key)
        whole = _joined(row)
        number_of_rows = _batch(shape for _, shape in whole.values()) if split else 0
        if not number_of_rows:
            yield Part(row, 0, whole, score)
        for number in range(number_of_rows):
            cut = {name: _row_of(values, shape, number) for name, (values, shape) in whole.items()}
            yield Part(row, number, cut, score)


def _joined(row: Row) -> dict[str, tuple[Any, tuple[int, ...]]]:
    """Return the tensors by column; those of the responses of a stream one behind the other."""
    found: dict[str, tuple[Any, tuple[int, ...]]] = {}
    for name, tensor in named(row):
        values = _values(tensor) if tensor.state == KEPT else None
        if name not in found:
            found[name] = values, tensor.shape
            continue
        before, shape = found[name]
        alike = len(shape) == len(tensor.shape) > 0 and shape[1:] == tensor.shape[1:]
        joined = None if before is None or values is None else np.concatenate([before, values])
        size = shape[0] + tensor.shape[0] if alike else 0
        found[name] = joined, (size, *shape[1:]) if alike else (0 if joined is None else len(joined),)
    return found


def _values(tensor: TapeTensor) -> Any:
    """Return the values of a tensor, flat."""
    if tensor.datatype == "BYTES":
        values = np.empty(tensor.array().size, object)
        values[:] = elements(tensor.data)
        return values
    if tensor.datatype == "BF16":
        return np.frombuffer(tensor.data, "<u2")
    array = tensor.array().reshape(-1)
    return array.astype(np.float32) if tensor.datatype == "FP16" else array


def batch(row: Row) -> int:
    """Return how many rows all tensors of a request have; 0 if they do not have as many."""
    return _batch(tensor.shape for _, tensor in named(row))


def _batch(shapes: Iterable[tuple[int, ...]]) -> int:
    found = list(shapes)
    sizes = {shape[0] if shape else 0 for shape in found}
    if len(sizes) != 1:
        return 0
    (size,) = sizes
    # A client can say that it has any number of rows with nothing in them, which the server has refused.
    return size if size <= _MOST_EMPTY or any(map(prod, found)) else 0


def _row_of(values: Any, shape: tuple[int, ...], number: int) -> tuple[Any, tuple[int, ...]]:
    if values is None:
        return None, shape[1:]
    size = len(values) // shape[0]
    return values[number * size : (number + 1) * size], shape[1:]


def groups(parts: Iterator[Part]) -> Iterator[list[Part]]:
    """Yield the rows of a table after those of the other: as many as have room."""
    group: list[Part] = []
    size = 0
    for part in parts:
        group.append(part)
        size += sum(_size(values) for values, _ in part.tensors.values())
        if len(group) >= _GROUP_ROWS or size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _size(values: Any) -> int:
    if values is None:
        return 0
    return sum(map(len, values)) if values.dtype == object else int(values.nbytes)


def schema(columns: Mapping[str, str]) -> pa.Schema:
    """Return the schema of tables whose tensors have these datatypes, by column."""
    fields = [pa.field(name, _kind(name)) for name in _READ]
    for name, datatype in columns.items():
        kind = pa.list_(pa.type_for_alias(_DATATYPES[datatype]))
        fields.append(pa.field(name, kind, metadata={"datatype": datatype}))
        fields.append(pa.field(f"{name}.shape", pa.list_(pa.int64())))
    return pa.schema(fields)


def table(group: Sequence[Part], columns: Mapping[str, str], made: pa.Schema) -> pa.Table:
    """Return rows as a table of this schema, which is that of these columns."""
    arrays = [_field(group, name, _kind(name)) for name in _READ]
    for name, datatype in columns.items():
        arrays += _lists(group, name, _DATATYPES[datatype])
    return pa.Table.from_arrays(arrays, schema=made)


def _field(group: Sequence[Part], name: str, kind: Any) -> Any:
    return pa.array([_READ[name](part) for part in group], kind)


def _lists(group: Sequence[Part], name: str, kind: str) -> list[Any]:
    """Return the columns of a tensor and its shape."""
    found = [part.tensors.get(name, (None, None)) for part in group]
    kept = [values for values, _ in found if values is not None]
    flat = np.concatenate(kept) if kept else np.empty(0, object if kind == "binary" else kind)
    ends = np.cumsum([0, *(0 if values is None else len(values) for values, _ in found)], dtype=np.int32)
    missing = pa.array([values is None for values, _ in found], pa.bool_())
    lists = pa.ListArray.from_arrays(ends, pa.array(flat, kind), mask=missing)
    shapes = pa.array([None if shape is None else list(shape) for _, shape in found], pa.list_(pa.int64()))
    return [lists, shapes]


def _failure(row: Row) -> tuple[str, str]:
    return next(((each.code, each.error) for each in row.responses if each.code), ("", ""))


def _kind(name: str) -> Any:
    return pa.timestamp("ns", "UTC") if name == "arrived" else pa.type_for_alias(_OTHERS.get(name, "string"))


_READ: Final[Mapping[str, Callable[[Part], Any]]] = {
    "key": lambda part: part.row.key,
    "number": lambda part: part.number,
    "id": lambda part: part.row.id,
    "model": lambda part: part.row.model,
    "version": lambda part: part.row.version,
    "asked_version": lambda part: part.row.asked_version,
    "arrived": lambda part: part.row.arrived_ns,
    "latency_ms": lambda part: part.row.latency_ns / 1e6,
    "token": lambda part: part.row.token,
    "sequence": lambda part: str(part.row.sequence_id or ""),
    "parameters": lambda part: to_json(part.row.parameters).decode() if part.row.parameters else "",
    "code": lambda part: _failure(part.row)[0],
    "error": lambda part: _failure(part.row)[1],
    "reason": lambda part: part.row.reason,
    "probability": lambda part: part.row.probability,
    "flags": lambda part: ",".join(part.row.flags),
    "score": lambda part: part.score,
}
"""The columns beside the tensors."""
