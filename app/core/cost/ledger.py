"""The cost ledger on disk: a file of JSON lines for each hour, for its owner alone.

Several processes may append to one directory. Lines of one key add up, so a reader of a file that is being
written sees less, and nothing wrong; a last line that was cut off by a crash is left out. When an hour is
over, one line of each key is left of its file.
"""

import fcntl
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from app.core.cost.rows import HOUR_S, HourBound, LedgerRow, began_at, hour_of, summed
from app.core.encoding import to_json
from app.core.files.private_files import private_directory
from app.core.whole_files import write_whole

MAX_HOURS: Final = 400 * 24
"""Files of a directory: thirteen months. The oldest go first."""
MAX_BYTES: Final = 1 << 30
"""Of those files."""
MAX_FILE_BYTES: Final = 256 << 20
"""Of one file that is read: the rest of a larger one is left out, and told."""
_NAME: Final = re.compile(r"cost-(\d{8}T\d{2})\.jsonl")


class Hour(NamedTuple):
    """The rows of an hour, one of each key, and how many lines could not be read."""

    hour: str
    rows: list[LedgerRow]
    broken: int


class LedgerWriter:
    """Appends rows to the ledger of a directory, which it makes. All methods block.

    Args:
        directory: of the files.
        max_hours, max_bytes: of the files that are kept.
    """

    def __init__(self, directory: Path, max_hours: int = MAX_HOURS, max_bytes: int = MAX_BYTES) -> None:
        self._directory = directory
        self._max_hours, self._max_bytes = max_hours, max_bytes
        self._bound = HourBound()
        self._hour = ""

    def append(self, rows: Iterable[LedgerRow]) -> None:
        """Append rows, those of one key as one; clients beyond the bound of an hour share a row.

        Raises:
            OSError: they cannot be written, or others than the owner may enter the directory.
        """
        private_directory(self._directory)
        with _locked(self._directory):
            for hour, group in groupby(sorted(rows, key=lambda row: row.hour), lambda row: row.hour):
                if hour > self._hour:
                    self._turn(hour)
                _append(_path(self._directory, hour), summed(map(self._bound.fitted, group)))

    def _turn(self, hour: str) -> None:
        """Begin an hour: what is there of it counts, and those that are over are made small."""
        self._bound = HourBound(read_hour([_path(self._directory, hour)], hour).rows)
        self._hour = hour
        older = [path for found, path in _files(self._directory) if found < hour]
        for path in older[-2:]:  # a process that was killed has left one, too
            _compact(path)
        self._remove(older)

    def _remove(self, older: Sequence[Path]) -> None:
        nbytes = 0
        for number, path in enumerate(reversed(older), 1):
            nbytes += path.stat().st_size
            if number >= self._max_hours or nbytes > self._max_bytes:
                path.unlink(missing_ok=True)


def read_hours(directories: Iterable[Path], since: float = 0.0, until: float | None = None) -> Iterator[Hour]:
    """Yield the hours of ledgers, the oldest first: those of several nodes together.

    Args:
        directories: of the ledgers.
        since: Unix seconds; the hour that it is in counts whole.
        until: the same; hours that begin later are left out.

    Raises:
        OSError: a directory or a file cannot be read.
    """
    paths: dict[str, list[Path]] = {}
    for directory in dict.fromkeys(directories):
        for hour, path in _files(directory):
            began = began_at(hour)
            if began > since - HOUR_S and (until is None or began < until):
                paths.setdefault(hour, []).append(path)
    for hour in sorted(paths):
        yield read_hour(paths[hour], hour)


def read_hour(paths: Iterable[Path], hour: str) -> Hour:
    """Read the files of an hour; those that are not there have no rows.

    Raises:
        OSError: one cannot be read.
    """
    rows, broken = list[LedgerRow](), 0
    for path in paths:
        text = _text(path)
        found, faults = _decoded(text, hour)
        rows, broken = summed([*rows, *found]), broken + faults + (len(text) > MAX_FILE_BYTES)
    return Hour(hour, rows, broken)


def _decoded(text: bytes, hour: str) -> tuple[list[LedgerRow], int]:
    """Return the rows of a file and how many lines are none, but for a last one that was cut off."""
    lines = text.split(b"\n")
    rows, broken = list[LedgerRow](), 0
    for line in lines[:-1]:
        try:
            row = _decode(line)
        except msgspec.MsgspecError:
            broken += 1
            continue
        if row.hour == hour:
            rows.append(row)
        else:
            broken += 1
    return rows, broken


_decode: Final = msgspec.json.Decoder(LedgerRow).decode


def _text(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return b""
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"'{path}' is no file")
        return file.read(MAX_FILE_BYTES + 1)


def _append(path: Path, rows: Iterable[LedgerRow]) -> None:
    """Append rows in one write; what a crash has cut off before stays a line of its own."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "r+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        cut_off = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
        file.write(b"\n" * cut_off + b"".join(to_json(row) + b"\n" for row in rows))


def _compact(path: Path) -> None:
    """Leave one line of each key in a file that is no longer written."""
    found = read_hour([path], _hour(path))
    text = b"".join(to_json(row) + b"\n" for row in found.rows)
    if not found.broken and len(text) < path.stat().st_size:
        write_whole(path, text)


def _path(directory: Path, hour: str) -> Path:
    return directory / f"cost-{hour[:13].replace('-', '')}.jsonl"


def _hour(path: Path) -> str:
    """Return the hour of a file; "" if it is none of the ledger's."""
    found = _NAME.fullmatch(path.name)
    if found is None:
        return ""
    day = found[1]
    return f"{day[:4]}-{day[4:6]}-{day[6:8]}T{day[9:]}:00:00Z"


def _files(directory: Path) -> list[tuple[str, Path]]:
    """Return the files of a directory with their hours, the oldest first."""
    found = [(_hour(path), path) for path in map(Path, _entries(directory))]
    return sorted((hour, path) for hour, path in found if _is_hour(hour))


def _entries(directory: Path) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.path for entry in entries]


def _is_hour(hour: str) -> bool:
    try:
        return bool(hour) and hour_of(began_at(hour)) == hour
    except ValueError:
        return False


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keep other writers of a directory waiting, which may be about to replace a file."""
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
