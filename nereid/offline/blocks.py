"""The input of a run in blocks of rows, each of which becomes one part of the output.

What is a block depends on the input and the number of rows alone, so that a run which goes on finds the
blocks of the one that was cut off.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from nereid.offline import tape_rows
from nereid.offline.arrow import texts
from nereid_client.tape.rows import TapeError

POSITION: Final = "row"
"""The column that says where a row came from: file and row, file and byte, or the file itself."""
CONTENT: Final = "bytes"
"""The column that has the content of a file."""
AS_JSON: Final = {b"nereid": b"json"}
"""Marks a column whose values are JSON, because one type does not fit all."""
_ENDINGS: Final = {"tape": tape_rows.ENDINGS, "parquet": (".parquet",), "jsonl": (".jsonl",)}
"""How the names of files of a format end."""
_LINES_BYTES: Final = 4 << 20
"""A block of JSON lines: those that begin in so many bytes."""


class InputError(Exception):
    """The input cannot be read, with the reason."""


class Block(NamedTuple):
    """Rows `start` to `stop` of a group of a Parquet file, bytes of lines or of a tape, or whole files."""

    number: int
    format: str
    paths: tuple[str, ...]
    group: int
    start: int
    stop: int


class Source(NamedTuple):
    """Files of one format.

    Attributes:
        url: a file, a directory or a pattern, with its protocol.
        format: parquet, jsonl, tape or files.
        storage: where they are.
        root: names of files begin behind it.
        paths: of the files, sorted.
        model: whose rows of a tape are meant.
        columns: datatypes of the tensors of a tape's rows, by column.
    """

    url: str
    format: str
    storage: Any
    root: str
    paths: list[str]
    model: str = ""
    columns: Mapping[str, str] = {}


def open_source(url: str, given: str = "", model: str = "") -> Source:
    """Find the files of an input.

    Args:
        url: a file, a directory or a pattern, in any storage that fsspec knows, such as s3://bucket/*.parquet.
        given: the format; by default that of the files' names, and "files" for any others.
        model: whose rows of a tape are meant.

    Raises:
        InputError: there are none.
    """
    try:
        storage, path = fsspec.core.url_to_fs(url)
        if any(letter in path for letter in "*?["):
            found = [name for name in storage.glob(path) if not storage.isdir(name)]
            root = path[: min(path.index(letter) for letter in "*?[" if letter in path)].rpartition("/")[0]
        elif storage.isdir(path):
            found, root = storage.find(path), path.rstrip("/")
        else:
            found, root = [path] if storage.exists(path) else [], path.rpartition("/")[0]
    except (OSError, ValueError, ImportError) as error:
        raise InputError(f"cannot read '{url}': {error}") from error
    names = sorted(name for name in found if not _hidden(name[len(root) :]))
    if not names:
        raise InputError(f"there is no file at '{url}'")
    kind = given or _format(names)
    if kind == "tape" or (not given and kind != "files"):
        names = [name for name in names if name.endswith(_ENDINGS[kind])]
    source = Source(storage.unstrip_protocol(path), kind, storage, root, names, model)
    return _of_tape(source) if kind == "tape" else source


def _of_tape(source: Source) -> Source:
    """Return the source with the columns of its rows."""
    if "file" not in source.storage.protocol:
        raise InputError(f"'{source.url}': a tape is read from a local directory")
    try:
        columns = tape_rows.datatypes(source.paths, source.model)
    except (OSError, TapeError) as error:
        raise InputError(f"cannot read '{source.url}': {error}") from error
    if not columns:
        raise InputError(f"the tape '{source.url}' has no row of model '{source.model}'")
    return source._replace(columns=columns)


def _hidden(name: str) -> bool:
    return any(part.startswith((".", "_")) for part in name.split("/") if part)


def _format(names: list[str]) -> str:
    for kind, endings in _ENDINGS.items():
        if any(name.endswith(endings) for name in names):
            return kind
    return "files"


def blocks(source: Source, rows: int) -> list[Block]:
    """Divide an input into blocks of at most so many rows."""
    if source.format == "files":
        starts = range(0, len(source.paths), rows)
        ranges = [("files", tuple(source.paths[at : at + rows]), 0, 0, 0) for at in starts]
    else:
        divide = {"parquet": _parquet_ranges, "jsonl": _line_ranges, "tape": _tape_ranges}[source.format]
        ranges = [each for path in source.paths for each in divide(source, path, rows)]
    return [Block(number, *each) for number, each in enumerate(ranges)]


_Range = tuple[str, tuple[str, ...], int, int, int]


def _parquet_ranges(source: Source, path: str, rows: int) -> Iterator[_Range]:
    try:
        with source.storage.open(path, "rb") as file:
            metadata = pq.read_metadata(file)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"'{path}' is not a Parquet file: {error}") from error
    for group in range(metadata.num_row_groups):
        size = metadata.row_group(group).num_rows
        for start in range(0, size, rows):
            yield "parquet", (path,), group, start, min(start + rows, size)


def _line_ranges(source: Source, path: str, rows: int) -> Iterator[_Range]:
    size = source.storage.size(path)
    for start in range(0, size, _LINES_BYTES):
        yield "jsonl", (path,), 0, start, min(start + _LINES_BYTES, size)


def _tape_ranges(source: Source, path: str, rows: int) -> Iterator[_Range]:
    for start, stop in tape_rows.ranges(path, source.model, rows):
        yield "tape", (path,), 0, start, stop


class Rows(NamedTuple):
    """The rows of a block by column, and what is wrong with some of them, by row."""

    table: pa.Table
    errors: dict[int, str]


def read(source: Source, block: Block, batched: bool = False) -> Rows:
    """Read a block, of a tape the requests or, `batched`, the rows of their batches.

    Raises:
        InputError: its files cannot be read.
    """
    try:
        if block.format == "tape":
            return _read_tape(source, block, batched)
        if block.format == "parquet":
            return _read_parquet(source, block)
        if block.format == "jsonl":
            return _read_lines(source, block)
        return _read_files(source, block)
    except (OSError, pa.ArrowException, TapeError) as error:
        raise InputError(f"cannot read '{block.paths[0]}': {error}") from error


def _read_tape(source: Source, block: Block, batched: bool) -> Rows:
    found = tape_rows.read(
        block.paths[0], source.model, source.columns, block.start, block.stop, split=batched
    )
    return Rows(_with_position(found.table, found.names), found.errors)


@lru_cache(maxsize=1)  # several blocks of one group follow each other
def _row_group(storage: Any, path: str, group: int) -> pa.Table:
    with storage.open(path, "rb") as file:
        return pq.ParquetFile(file).read_row_group(group)


def _read_parquet(source: Source, block: Block) -> Rows:
    table = _row_group(source.storage, block.paths[0], block.group).slice(
        block.start, block.stop - block.start
    )
    name = block.paths[0][len(source.root) :].lstrip("/")
    positions = [f"{name}:{block.group}:{at}" for at in range(block.start, block.stop)]
    return Rows(_with_position(table, positions), {})


def _read_lines(source: Source, block: Block) -> Rows:
    name = block.paths[0][len(source.root) :].lstrip("/")
    rows: list[dict[str, Any]] = []
    positions, errors = [], {}
    with source.storage.open(block.paths[0], "rb") as file:
        if block.start:  # a line belongs to the block in which it begins
            file.seek(block.start - 1)
            file.readline()
        while (at := file.tell()) < block.stop and (line := file.readline()):
            if not line.strip():
                continue
            positions.append(f"{name}:{at}")
            try:
                rows.append(_object(line))
            except ValueError as error:
                errors[len(rows)] = f"the line at byte {at} of {name} is no JSON object: {error}"
                rows.append({})
    names = dict.fromkeys(key for row in rows for key in row)
    columns = [_json_column(key, [row.get(key) for row in rows]) for key in names]
    table = pa.Table.from_arrays(
        [each[1] for each in columns], schema=pa.schema([each[0] for each in columns])
    )
    return Rows(_with_position(table, positions), errors)


def _object(line: bytes) -> dict[str, Any]:
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError("it is something else")
    return {key: _bytes(value) for key, value in row.items()}


def _bytes(value: Any) -> Any:
    """Binary values are {"b64": ...} in JSON."""
    if isinstance(value, dict) and value.keys() == {"b64"}:
        return base64.b64decode(value["b64"], validate=True)
    return value


def _json_column(name: str, values: list[Any]) -> tuple[Any, Any]:
    """Return the field and the values; those of several kinds as JSON, marked as such."""
    try:
        column = pa.array(values)
        return pa.field(name, column.type), column
    except pa.ArrowException:
        written = [None if value is None else json.dumps(value, default=_text) for value in values]
        return pa.field(name, pa.string(), metadata=AS_JSON), texts(written, pa.string())


def _text(value: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(value).decode()}


def _read_files(source: Source, block: Block) -> Rows:
    contents, errors = [], {}
    for number, path in enumerate(block.paths):
        try:
            contents.append(_content(source.storage, path))
        except OSError as error:
            errors[number] = f"cannot be read: {error}"
            contents.append(b"")
    names = [path[len(source.root) :].lstrip("/") for path in block.paths]
    return Rows(_with_position(pa.table({CONTENT: texts(contents, pa.large_binary())}), names), errors)


def _content(storage: Any, path: str) -> bytes:
    if "file" in storage.protocol:  # fsspec takes three times as long
        with open(path, "rb") as file:
            return file.read()
    return bytes(storage.cat_file(path))


def _with_position(table: pa.Table, positions: list[str]) -> pa.Table:
    if POSITION in table.column_names:
        return table
    column = texts(positions, pa.string())
    if not table.num_columns:
        return pa.table({POSITION: column})
    return table.append_column(POSITION, column)
