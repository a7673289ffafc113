"""The input of a run in blocks of rows, each of which becomes one part of the output.

What is a block depends on the input and the number of rows alone, so that a run which goes on finds the
blocks of the one that was cut off.
"""

import base64
import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from nereid.offline.arrow import texts

POSITION: Final = "row"
"""The column that says where a row came from: file and row, file and byte, or the file itself."""
CONTENT: Final = "bytes"
"""The column that has the content of a file."""
AS_JSON: Final = {b"nereid": b"json"}
"""Marks a column whose values are JSON, because one type does not fit all."""
_TAPE: Final = (".tape", ".open")
"""How the names of a tape's segments end."""
_LINES_BYTES: Final = 4 << 20
"""A block of JSON lines: those that begin in so many bytes."""


class InputError(Exception):
    """The input cannot be read, with the reason."""


class Block(NamedTuple):
    """Rows `start` to `stop` of a group of a Parquet file, bytes of a file of lines, or whole files."""

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
        format: parquet, jsonl or files.
        storage: where they are.
        root: names of files begin behind it.
        paths: of the files, sorted.
    """

    url: str
    format: str
    storage: Any
    root: str
    paths: list[str]


def open_source(url: str, given: str = "") -> Source:
    """Find the files of an input.

    Args:
        url: a file, a directory or a pattern, in any storage that fsspec knows, such as s3://bucket/*.parquet.
        given: the format; by default that of the files' names, and "files" for any others.

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
    if not given and any(name.endswith(_TAPE) for name in names):
        raise InputError(
            f"'{url}' is a tape: `nereid tape export {url} rows.parquet --where model=NAME --split` makes "
            "rows of it, for --input rows.parquet --map INPUT=in.INPUT"
        )
    kind = given or _format(names)
    if not given and kind != "files":
        names = [name for name in names if name.endswith(kind)]
    return Source(storage.unstrip_protocol(path), kind, storage, root, names)


def _hidden(name: str) -> bool:
    return any(part.startswith((".", "_")) for part in name.split("/") if part)


def _format(names: list[str]) -> str:
    for kind in ("parquet", "jsonl"):
        if any(name.endswith("." + kind) for name in names):
            return kind
    return "files"


def blocks(source: Source, rows: int) -> list[Block]:
    """Divide an input into blocks of at most so many rows."""
    if source.format == "files":
        starts = range(0, len(source.paths), rows)
        ranges = [("files", tuple(source.paths[at : at + rows]), 0, 0, 0) for at in starts]
    else:
        divide = _parquet_ranges if source.format == "parquet" else _line_ranges
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


class Rows(NamedTuple):
    """The rows of a block by column, and what is wrong with some of them, by row."""

    table: pa.Table
    errors: dict[int, str]


def read(source: Source, block: Block) -> Rows:
    """Read a block; raise `InputError` if its files cannot be read."""
    try:
        if block.format == "parquet":
            return _read_parquet(source, block)
        if block.format == "jsonl":
            return _read_lines(source, block)
        return _read_files(source, block)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"cannot read '{block.paths[0]}': {error}") from error


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
