"""Finds rows of a node's tape by the ids of their requests, or by their keys.

Of each row the index has 16 bytes for each: of sealed segments in a file beside them (`*.ids`, mapped), so
that a start does not go over a tape of many GiB again; of those that are being written, in memory.
"""

import os
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from nereid_client.tape.records import MAGIC, ROW, RecordFile
from nereid_client.tape.rows import Row, TapeError
from nereid_client.tape.segments import OPEN, SEALED, decode_row

IDS: Final = ".ids"
_CHUNK: Final = 4096
"""Rows of a segment that is being written after which their hashes are sorted."""
_MOST_SAME: Final = 8
"""Rows of one id that are looked at, the newest segments first."""

_Hashes = np.ndarray[Any, Any]
"""Sorted by hash and position: columns of 8 bytes, the hash and where the row begins."""


class Wanted(NamedTuple):
    """What names a row: the id of a request of a model, or its key."""

    model: str
    id: str = ""
    row: str = ""

    @property
    def hash(self) -> int:
        """By which the index has it."""
        return _hash(self.model, self.id) if self.id else _hash("", self.row)

    def names(self, row: Row) -> bool:
        """Return whether a row is the one."""
        return row.model == self.model and (row.id == self.id if self.id else row.key == self.row)


class _Names(msgspec.Struct, array_like=True, gc=False):
    """The beginning of a row's head."""

    arrived_ns: int
    monotonic_ns: int
    ingress: str
    number: int
    model: str
    asked_version: str
    version: str
    id: str


_decode: Final = msgspec.msgpack.Decoder(_Names).decode


class RowIndex:
    """The rows of a directory of segments. Of one thread.

    Args:
        directory: of the node's segments; it may be missing as long as nothing is recorded.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._segments: dict[str, _Indexed] = {}

    def refresh(self, most: int = 20_000) -> bool:
        """Look at rows that were written since, at most so many; return whether those were all."""
        found = self._files()
        for name in self._segments.keys() - found.keys():
            del self._segments[name]
        for name in found:
            segment = self._segments.get(name)
            if segment is None or segment.replaced(found[name]):
                self._segments[name] = segment = _Indexed(found[name])
            most -= segment.read(found[name], most)
            if most <= 0:
                return False
        return True

    def _files(self) -> dict[str, Path]:
        """Return the segments by name; remove what is left of the index of those that are gone."""
        try:
            paths = sorted(self._directory.iterdir())
        except OSError:
            return {}
        found = {path.stem: path for path in paths if path.suffix in (OPEN, SEALED)}
        for path in paths:
            if path.suffix == IDS and path.stem not in found:
                path.unlink(missing_ok=True)
        return found

    def find(self, wanted: Sequence[Wanted]) -> list[Row | None]:
        """Return the rows of names, the newest of several; None where there is none."""
        hashes = np.array([each.hash for each in wanted], np.uint64)
        found: list[Row | None] = [None] * len(wanted)
        looked = [0] * len(wanted)
        for segment in sorted(self._segments.values(), key=lambda each: -each.last_ns):
            places = [each for each in segment.find(hashes) if looked[each[0]] < _MOST_SAME]
            for number, row in segment.rows(places):
                looked[number] += 1
                before = found[number]
                if wanted[number].names(row) and (before is None or before.arrived_ns < row.arrived_ns):
                    found[number] = row
        return found


class _Indexed:
    """One segment."""

    def __init__(self, path: Path) -> None:
        self._path, self._upto = path, len(MAGIC)
        self._inode = path.stat().st_ino if path.exists() else 0
        self._chunks: list[_Hashes] = []
        self._pending = array("Q")
        self._whole = False
        self.last_ns = 0

    def replaced(self, path: Path) -> bool:
        """Return whether the file is another one now: `nereid tape rm` writes segments anew."""
        with suppress(OSError):
            return path.stat().st_ino != self._inode
        return False

    def read(self, path: Path, most: int) -> int:
        """Read further rows, at most so many; return their number."""
        self._path = path
        if self._whole or (path.suffix == SEALED and self._upto == len(MAGIC) and self._load()):
            return 0
        number = 0
        with suppress(OSError, TapeError), RecordFile(path) as file:
            for place in file.places(self._upto):
                if number >= most:
                    return number
                self._upto = place.end
                if place.kind == ROW:
                    number += 1
                    self.last_ns = max(self.last_ns, place.moment)
                    with suppress(msgspec.MsgspecError):
                        self._add(_decode(file.head(place)), place.start)
            if path.suffix == SEALED:
                self._save()
        return number

    def _add(self, names: _Names, start: int) -> None:
        if names.id:
            self._pending.extend((_hash(names.model, names.id), start))
        self._pending.extend((_hash("", f"{names.ingress}-{names.number}"), start))
        if len(self._pending) >= 2 * _CHUNK:
            self._sort()

    def _sort(self) -> None:
        if self._pending:
            self._chunks.append(_sorted(np.frombuffer(self._pending, np.uint64).reshape(-1, 2).copy()))
            self._pending = array("Q")

    def _save(self) -> None:
        """Keep the index of a sealed segment in a file, if that can be written."""
        self._sort()
        self._whole = True
        if not self._chunks:
            return
        self._chunks = [_sorted(np.concatenate(self._chunks))]
        kept = self._path.with_suffix(IDS)
        made = kept.with_name(f"{kept.name}.{os.getpid()}")
        with suppress(OSError):
            header = np.array([[_version(self._path), self.last_ns]], np.uint64)
            np.concatenate([header, self._chunks[0]]).tofile(made)
            os.replace(made, kept)
            self._load()

    def _load(self) -> bool:
        with suppress(OSError, ValueError):
            rows = np.memmap(self._path.with_suffix(IDS), np.uint64, "r").reshape(-1, 2)
            if int(rows[0, 0]) == _version(self._path):
                self._chunks, self.last_ns, self._whole = [rows[1:]], int(rows[0, 1]), True
                return True
        return False

    def find(self, hashes: _Hashes) -> Iterator[tuple[int, int]]:
        """Yield the numbers of hashes that are here, each with where its last row begins."""
        self._sort()
        for chunk in self._chunks:
            column = chunk[:, 0]
            at = np.searchsorted(column, hashes, "right") - 1
            hits = (at >= 0) & (column[np.maximum(at, 0)] == hashes)
            for number in np.flatnonzero(hits):
                yield int(number), int(chunk[at[number], 1])

    def rows(self, places: Sequence[tuple[int, int]]) -> Iterator[tuple[int, Row]]:
        """Yield the rows that begin at places, with the numbers of these."""
        if not places:
            return
        with suppress(OSError, TapeError), RecordFile(self._path) as file:
            for number, start in sorted(places, key=lambda each: each[1]):
                place = file.place(start)
                with suppress(TapeError):
                    if place is not None and place.kind == ROW:
                        yield number, decode_row(file, place)


def _version(path: Path) -> int:
    """Return a number that a sealed segment has until it is written anew."""
    found = path.stat()
    return (found.st_ino ^ found.st_mtime_ns ^ found.st_size << 40) & (1 << 64) - 1


def _sorted(rows: _Hashes) -> _Hashes:
    return rows[np.lexsort((rows[:, 1], rows[:, 0]))]


def _hash(model: str, name: str) -> int:
    text = f"{model}\0{name}".encode(errors="surrogateescape")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")
