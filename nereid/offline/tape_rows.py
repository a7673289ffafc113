"""The recorded requests of a model as rows: those of a block, and what blocks a tape has."""

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from nereid.offline import tape_tables as tables
from nereid_client.tape.reader import rows_missing
from nereid_client.tape.records import ROW, Place, RecordFile
from nereid_client.tape.rows import OMITTED, Row, TapeError, TapeTensor
from nereid_client.tape.segments import OPEN, SEALED, decode_row, lost

ENDINGS: Final = (SEALED, OPEN)
"""How the names of segments end."""
_BLOCK_BYTES: Final = 32 << 20
"""Bytes of the tensors of a block, unless one request has more."""


class _Looked(NamedTuple):
    """What the rows of a model in a segment are, by their heads.

    Attributes:
        datatypes: of the tensors of those that were answered, by column.
        failed: of the tensors of others.
        starts: the bytes at which they begin, and the end of the last one.
        sizes: bytes of their tensors.
        rows: of their batches; 1 for those that have no batch.
        lost: rows of any model that cannot be read.
    """

    datatypes: dict[str, str]
    failed: dict[str, str]
    starts: Sequence[int]
    sizes: Sequence[int]
    rows: Sequence[int]
    lost: int


def troubles(paths: Sequence[str], model: str) -> list[str]:
    """Return what of a tape cannot be read, in sentences.

    Raises:
        TapeError: a segment is none.
        OSError: it cannot be read.
    """
    return [rows_missing(path, number) for path in paths if (number := _looked(path, model).lost)]


def datatypes(paths: Sequence[str], model: str) -> dict[str, str]:
    """Return the datatypes of the columns of a model's rows, over all segments.

    Raises:
        TapeError: a segment cannot be read, or they differ.
        OSError: likewise.
    """
    found: dict[str, str] = {}
    for path in paths:
        for name, datatype in _looked(path, model).datatypes.items():
            if found.setdefault(name, datatype) != datatype:
                raise TapeError(f"'{name}' of model '{model}' is {found[name]}, and {datatype} in '{path}'")
    for path in paths:  # a request that failed may have had another datatype for that
        found = _looked(path, model).failed | found
    return dict(sorted(found.items()))


def ranges(path: str, model: str, rows: int) -> Iterator[tuple[int, int]]:
    """Divide a segment: from the byte of a row to that behind another, with at most so many rows of batches.

    Raises:
        TapeError: it cannot be read.
        OSError: likewise.
    """
    looked = _looked(path, model)
    begin = count = size = 0
    for at, (more, nbytes) in enumerate(zip(looked.rows, looked.sizes, strict=True)):
        if at > begin and (count + more > rows or size + nbytes > _BLOCK_BYTES):
            yield looked.starts[begin], looked.starts[at]
            begin, count, size = at, 0, 0
        count, size = count + more, size + nbytes
    if count:
        yield looked.starts[begin], looked.starts[-1]


@lru_cache(maxsize=1024)
def _looked(path: str, model: str) -> _Looked:
    starts, sizes, rows = array("Q"), array("Q"), array("Q")
    failed: dict[str, str] = {}
    seen: Counter[bool] = Counter()
    with _opened(path) as file:
        found, _ = tables.datatypes(_answered(_counted(file, model, starts, sizes, rows, seen), failed))
        missing = lost(file, seen.total()) if file.path.endswith(SEALED) else 0
    return _Looked(found, failed, starts, sizes, rows, seen[False] + missing)


def _answered(rows: Iterator[Row], failed: dict[str, str]) -> Iterator[Row]:
    """Yield rows that were answered; write down the first datatypes of the others, which may be why."""
    for row in rows:
        if not row.failed:
            yield row
            continue
        for name, tensor in tables.named(row):
            failed.setdefault(name, tensor.datatype)


def _counted(
    file: RecordFile,
    model: str,
    starts: "array[int]",
    sizes: "array[int]",
    rows: "array[int]",
    seen: Counter[bool],
) -> Iterator[Row]:
    """Yield the rows of a model without their tensors' data, and write down what they are."""
    end = 0
    for place, row in _rows(file, model, file.places(), seen):
        starts.append(place.start)
        sizes.append(row.nbytes)
        rows.append(max(1, tables.batch(row)))
        end = place.end
        yield row
    starts.append(end)


def _rows(
    file: RecordFile, model: str, places: Iterator[Place], seen: Counter[bool]
) -> Iterator[tuple[Place, Row]]:
    """Yield the rows of a model without their tensors' data, and where they are.

    Args:
        seen: counts rows of any model: whether they can be read.
    """
    for place in places:
        if place.kind == ROW:
            try:
                row = decode_row(file, place, bodies=False)
            except TapeError:
                seen[False] += 1
                continue
            seen[True] += 1
            if row.model == model:
                yield place, row


def _opened(path: str) -> RecordFile:
    """Open a segment, which may have been sealed since its name was read."""
    try:
        return RecordFile(path)
    except FileNotFoundError:
        if not path.endswith(OPEN):
            raise
        return RecordFile(Path(path).with_suffix(SEALED))


class Read(NamedTuple):
    """The rows of a block.

    Attributes:
        table: with the columns of `tape_tables`, without scores.
        names: of the rows: the key of the request, and with `split` the row of its batch.
        errors: why rows are not to be sent again, by row.
    """

    table: pa.Table
    names: list[str]
    errors: dict[int, str]


def read(path: str, model: str, columns: Mapping[str, str], begin: int, end: int, split: bool) -> Read:
    """Read the rows of a model in a segment.

    Args:
        path: of the segment.
        model: whose rows.
        columns: datatypes of the columns of tensors.
        begin: the byte at which the first row begins.
        end: that behind the last one.
        split: a row for each row of a request's batch.

    Raises:
        TapeError: it is no segment any more, or has other tensors than its heads say.
        OSError: it cannot be read.
    """
    whys: dict[str, str] = {}
    with _opened(path) as file:
        places = takewhile(lambda place: place.start < end, file.places(begin))
        rows = (
            _whole(file, place, row, columns, whys) for place, row in _rows(file, model, places, Counter())
        )
        parts = list(tables.parts(rows, split, lambda _: None))
    table = tables.table(parts, columns, tables.schema(columns)).drop_columns(["score"])
    names = [f"{part.row.key}:{part.number}" if split else part.row.key for part in parts]
    errors = {at: whys[part.row.key] for at, part in enumerate(parts) if part.row.key in whys}
    return Read(table, names, errors)


def _whole(file: RecordFile, place: Place, row: Row, columns: Mapping[str, str], whys: dict[str, str]) -> Row:
    """Return a row with its tensors' data; without them where they are damaged, or of other datatypes."""
    whys |= {row.key: row.why_not} if row.why_not else {}
    others = [each for name, each in tables.named(row) if each.datatype != columns.get(name, each.datatype)]
    if others:
        whys[row.key] = f"'{others[0].name}' is {others[0].datatype}, unlike that of answered requests"
    else:
        try:
            return decode_row(file, place)
        except TapeError as error:
            whys[row.key] = str(error)
    responses = tuple(replace(each, outputs=_omitted(each.outputs)) for each in row.responses)
    return replace(row, inputs=_omitted(row.inputs), responses=responses)


def _omitted(tensors: Sequence[TapeTensor]) -> tuple[TapeTensor, ...]:
    return tuple(replace(each, state=OMITTED) for each in tensors)
