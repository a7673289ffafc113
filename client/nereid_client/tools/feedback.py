"""`nereid feedback FILE`: labels or scores of a file, as feedback on answers of a model."""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from nereid_client.errors import ServerError
from nereid_client.sync import Model, Server
from nereid_client.tools.arguments import command_parser, count, seconds
from nereid_client.tools.progress import Shown

_ABOUT: Final = "Tell a server what was right, or how good its answers were: by request ids, from a file."
_EXAMPLES: Final = """examples:
  nereid feedback labels.csv -m simple
  nereid feedback sold.parquet -m offers -u grpc://server:8001 --id request_id --score bought
  nereid feedback labels.jsonl -m simple --skip 120000      # goes on where a run has ended

exit status: 0 all records were kept; 1 the server refuses or cannot be reached; 2 the command or the file is
wrong"""
_FIELDS: Final = ("id", "row", "score", "label", "outputs", "output")
_AT_ONCE: Final = 1000
_TIMEOUT_S: Final = 300.0
TOKEN_VARIABLE: Final = "NEREID_TOKEN"

Record = dict[str, Any]


class FileError(ValueError):
    """A file that has no records, or a wrong one."""


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    options = _parser().parse_args(argv)
    columns = {name: getattr(options, name) or name for name in _FIELDS}
    try:
        records = islice(read(options.file, columns, options.format), options.skip, None)
        url = options.url if "://" in options.url else f"http://{options.url}"
        with Server(url, token=_token(options), timeout=options.timeout) as server:
            return _send(server.model(options.model, options.version), records, options)
    except FileError as error:
        print(f"{options.file}: {error}", file=sys.stderr)
        return 2
    except (OSError, ValueError, ImportError) as error:
        print(f"nereid feedback: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("nereid feedback", _ABOUT, _EXAMPLES)
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help=".parquet, .csv, or .jsonl")
    add("-m", "--model", required=True, metavar="MODEL")
    add("--version", default="", metavar="V", help="only answers of this version")
    add("-u", "--url", default="localhost:8000", metavar="URL", help="http://, https://, grpc:// or grpcs://")
    add("--format", choices=sorted(_READERS), help="of the file, where its name does not tell")
    for name in _FIELDS:
        add(f"--{name}", metavar="COLUMN", help=f"the column of `{name}`, where it has another name")
    add("--skip", type=count, default=0, metavar="N", help="leave out the first records")
    add("--token-file", type=Path, metavar="FILE", help=f"with the token to send; else {TOKEN_VARIABLE}")
    text = "seconds for which what the server cannot take now is sent again (300)"
    add("--timeout", type=seconds, default=_TIMEOUT_S, metavar="S", help=text)
    return parser


def _token(options: argparse.Namespace) -> str:
    if options.token_file is None:
        return os.environ.get(TOKEN_VARIABLE, "")
    token: str = options.token_file.read_text().strip()
    return token


def _send(model: Model, records: Iterator[Record], options: argparse.Namespace) -> int:
    """Send records; print how many were kept."""
    kept = 0
    with Shown(Console(stderr=True), "feedback", "records") as shown:
        try:
            while some := list(islice(records, _AT_ONCE)):
                kept += model.feedback(some)
                shown.tick("sent", kept, kept)
        except ServerError as error:
            print(f"{options.url}: {error}", file=sys.stderr)
            print(f"{kept} records were kept; --skip {options.skip + kept} goes on", file=sys.stderr)
            return 1
    print(f"{kept} records were kept; GET /v2/models/{options.model}/feedback tells what became of them")
    return 0


def read(path: Path, columns: Mapping[str, str], kind: str | None = None) -> Iterator[Record]:
    """Yield the records of a file, one after the other.

    Args:
        path: of the file.
        columns: the name of the column for each field.
        kind: parquet, csv or jsonl; None for what the name says.

    Raises:
        FileError: it has another form.
        OSError: it cannot be read.
    """
    chosen = kind or {".ndjson": "jsonl", ".json": "jsonl", ".pq": "parquet"}.get(
        path.suffix, path.suffix.removeprefix(".")
    )
    if chosen not in _READERS:
        raise FileError("its name does not end in .parquet, .csv or .jsonl: --format says what it is")
    for number, row in enumerate(_READERS[chosen](path), 1):
        if number == 1 and not ({columns["id"], columns["row"]} & row.keys()):
            raise FileError(
                f"there is no column '{columns['id']}' or '{columns['row']}', the columns are "
                f"{', '.join(map(str, row))}: --id names one"
            )
        yield {name: _typed(name, row[column]) for name, column in columns.items() if _given(row, column)}


def _given(row: Record, column: str) -> bool:
    return row.get(column) is not None


def _typed(name: str, value: Any) -> Any:
    """Return a value as its field has it: CSV knows texts only, and ids may be numbers elsewhere."""
    if name in ("id", "row", "output"):
        return str(value)
    if name == "score":
        return _parsed(value) if isinstance(value, str) else float(value)
    if name == "label" and isinstance(value, str):
        return _parsed(value)
    return json.loads(value) if name == "outputs" and isinstance(value, str) else value


def _parsed(text: str) -> Any:
    """Return the number, or list, that a text is; else the text."""
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return found if isinstance(found, int | float | list) else text


def _parquet(path: Path) -> Iterator[Record]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ImportError("Parquet needs pyarrow: pip install 'nereid-server[batch]', or pyarrow") from None
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_AT_ONCE):
                yield from batch.to_pylist()
    except pa.ArrowInvalid as error:
        raise FileError(str(error)) from None


def _csv(path: Path) -> Iterator[Record]:
    with open(path, newline="", encoding="utf-8-sig") as file:
        try:
            for row in csv.DictReader(file):
                yield _checked(row)
        except (csv.Error, UnicodeDecodeError) as error:
            raise FileError(str(error)) from None


def _checked(row: Mapping[str | None, Any]) -> Record:
    if None in row:
        raise FileError(f"a line has more values than columns: {row[None]}")
    return {str(name): value for name, value in row.items() if value}


def _lines(path: Path) -> Iterator[Record]:
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                found = json.loads(line)
            except ValueError as error:
                raise FileError(f"line {number}: {error}") from None
            if not isinstance(found, dict):
                raise FileError(f"line {number} is no object")
            yield found


_READERS: Final[dict[str, Callable[[Path], Iterator[Record]]]] = {
    "csv": _csv,
    "jsonl": _lines,
    "parquet": _parquet,
}
