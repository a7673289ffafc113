"""`nereid tape export`: rows as Parquet, with the columns of `nereid.offline.tape_tables`."""

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.console import Console

from app.core.installed.installation import install_command
from nereid.commands.tape.books import Books
from nereid_client.tape.reader import Tape
from nereid_client.tape.rows import Row
from nereid_client.tape.where import Where
from nereid_client.tools.progress import Shown

try:
    import pyarrow.parquet as pq

    from nereid.offline import tape_tables as tables
except ImportError:
    pq = None


def export(tape: Tape, where: Where | None, options: argparse.Namespace) -> int:
    """Write rows; return the exit status."""
    if pq is None:
        print(f"nereid tape export needs pyarrow: {install_command('batch')}", file=sys.stderr)
        return 1
    path: Path = options.file
    if path.exists():
        print(f"{path} is there already", file=sys.stderr)
        return 1
    total = sum(each.counted.rows for each in tape.segments())
    with Shown(Console(stderr=True), "exporting", "rows") as shown, Books(tape.segments()) as books:
        columns, rows = tables.datatypes(_ticking(tape.rows(where, bodies=False), shown, "looking", total))
        if not rows:
            print("no row was chosen", file=sys.stderr)
            return 1
        made = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            chosen = _ticking(tape.rows(where), shown, "writing", rows)
            written = _write(made, columns, tables.parts(chosen, options.split, books.score))
            os.replace(made, path)
        finally:
            made.unlink(missing_ok=True)
    print(f"{written} rows in {path}")
    return 0


def _ticking(rows: Iterator[Row], shown: Shown, stage: str, total: int) -> Iterator[Row]:
    for number, row in enumerate(rows):
        if number % 100 == 0:
            shown.tick(stage, number, total)
        yield row


def _write(path: Path, columns: Mapping[str, str], parts: "Iterator[tables.Part]") -> int:
    schema, number = tables.schema(columns), 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for group in tables.groups(parts):
            writer.write_table(tables.table(group, columns, schema))
            number += len(group)
    return number
