"""`nereid tape rm`: rows that are to be forgotten.

A segment is written anew without them beside the old one, and takes its place in one step: a crash leaves the
one or the other. One that a server writes is left until it is sealed.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rich.console import Console

from app.feedback.row_index import IDS
from app.tape.files import recover
from nereid.commands.tape.books import Books
from nereid_client.tape.reader import Tape
from nereid_client.tape.records import MAGIC, ROW, RecordFile, encode
from nereid_client.tape.rows import TapeError
from nereid_client.tape.segments import Counted, Segment, decode_row, encode_summary, lost
from nereid_client.tape.where import Where
from nereid_client.tools.progress import Shown

_WAIT_S: Final = 900.0
"""A server seals a segment after ten minutes at the latest."""
_LOOK_S: Final = 1.0
_BUFFER: Final = 1 << 20

pause = time.sleep


def remove(tape: Tape, where: Where, options: argparse.Namespace) -> int:
    """Remove rows; return the exit status."""
    for directory in {each.path.parent for each in tape.segments()}:
        recover(directory)  # what ended servers have left open
    segments = tape.segments()
    found = {each.path: number for each in segments if (number := _chosen(each, where))}
    number = sum(found.values())
    if not number:
        print("no row was chosen", file=sys.stderr)
        return 1
    if not options.yes and not _agreed(number):
        return 1
    removed = said = failed = 0
    with Shown(Console(stderr=True), "removing", "segments") as shown, Books(segments) as books:
        for done, path in enumerate(found):
            shown.tick("rewriting", done, len(found))
            try:
                keys = _rewritten(path, where, options.wait)
            except OSError as error:
                print(f"nereid tape rm: {error}", file=sys.stderr)
                failed += found[path]
                continue
            said += books.forget(keys)  # at once: who is interrupted does not find these rows again
            removed += len(keys)
    also = f", and what was said of {said}" if said else ""
    print(f"{_rows(removed)} removed{also}")
    if left := number - removed - failed:
        print(
            f"{left} more in segments that a server is writing: again in ten minutes, or with --wait",
            file=sys.stderr,
        )
    return 1 if left > 0 or failed else 0


def _agreed(number: int) -> bool:
    if not sys.stdin.isatty():
        print(f"{_rows(number)} not removed without --yes", file=sys.stderr)
        return False
    return input(f"remove {number} rows? [y/N] ").strip().lower() in ("y", "yes")


def _rows(number: int) -> str:
    return "1 row was" if number == 1 else f"{number} rows were"


def _chosen(segment: Segment, where: Where) -> int:
    """Return how many rows of a segment are chosen; say so if others cannot be looked at."""
    chosen = rows = 0
    with RecordFile(segment.path) as file:
        for place in file.places():
            if place.kind == ROW:
                rows += 1
                chosen += where(decode_row(file, place, bodies=False))
        if segment.sealed and (missing := lost(file, rows)):
            print(_damaged(segment.path, missing), file=sys.stderr)
    return chosen


def _rewritten(path: Path, where: Where, wait: bool) -> list[str]:
    """Write a segment anew without the chosen rows, once it is sealed; return their keys."""
    end = time.monotonic() + (_WAIT_S if wait else 0)
    while path.exists() and path.suffix == ".open":
        if time.monotonic() >= end:
            return []
        pause(_LOOK_S)
    sealed = path.with_suffix(".tape")
    return without(sealed, where) if sealed.exists() else []


def _damaged(path: Path, missing: int) -> str:
    return f"'{path}' is damaged: {missing} or more of its rows cannot be read, only deleted with the file"


def without(path: Path, where: Where, replace: Callable[[Path, Path], None] = os.replace) -> list[str]:
    """Replace a sealed segment by one without the chosen rows; without any left it is deleted.

    Raises:
        OSError: it cannot be written; it is as it was.
    """
    removed, counted = [], Counted()
    made = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        made.touch(0o600)
        with RecordFile(path) as file, open(made, "wb", _BUFFER) as out:
            out.write(MAGIC)
            for place in file.places():
                if place.kind != ROW:
                    continue
                row = decode_row(file, place, bodies=False)
                if where(row):
                    removed.append(row.key)
                    continue
                parts = encode(ROW, place.moment, file.head(place), [file.body(place)])
                out.writelines(parts)
                counted.count(place.moment, row.model, sum(map(len, parts)))
            if missing := lost(file, counted.rows + len(removed)):
                raise TapeError(_damaged(path, missing))
            out.writelines(encode_summary(counted, out.tell()))
            out.flush()
            os.fdatasync(out.fileno())
        if counted.rows:
            replace(made, path)
        else:
            path.unlink()
        path.with_suffix(IDS).unlink(missing_ok=True)
    except TapeError as error:
        raise OSError(f"{error}; nothing of it was removed") from None
    finally:
        made.unlink(missing_ok=True)
    return removed
