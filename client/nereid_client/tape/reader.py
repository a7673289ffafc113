"""Reads a tape, whoever has recorded it, also while it is being recorded."""

import heapq
import os
from array import array
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nereid_client.tape.records import ROW, Place, RecordFile
from nereid_client.tape.rows import Row, TapeError
from nereid_client.tape.segments import OPEN, SEALED, Segment, decode_row, lost, read_segment
from nereid_client.tape.where import Where


class Tape:
    """A tape: a directory with segments at any depth, or one segment.

    Args:
        path: of the directory or file.

    Raises:
        TapeError: there is no tape, or a file that is named is none.
        OSError: it cannot be read.

    Attributes:
        path: this path.
        damaged: rows that could not be read so far, by file, or are missing; the others of the file are.
        unreadable: files that are no segments, with the reason.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.damaged: dict[Path, int] = {}
        self.unreadable: dict[Path, str] = {}
        self._segments: list[Segment] | None = None
        if not self.path.is_dir():
            if not self.path.exists():
                raise TapeError(f"there is no tape at '{path}'")
            self._segments = [read_segment(self.path)]

    def __enter__(self) -> "Tape":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget what was read of the segments; iterators that were begun can go on."""
        self._segments = None if self.path.is_dir() else self._segments

    @property
    def troubles(self) -> list[str]:
        """What could not be read so far, in sentences."""
        damaged = [rows_missing(path, number) for path, number in sorted(self.damaged.items())]
        return [*damaged, *(f"{path}: {why}" for path, why in sorted(self.unreadable.items()))]

    def segments(self) -> list[Segment]:
        """Return the segments, by the arrival of their first row; those without any rows first.

        Each call looks at the directory as it is now.

        Raises:
            TapeError: the directory has none.
        """
        if not self.path.is_dir():
            return list(self._segments or ())
        files = [each for each in self.path.rglob("*") if each.suffix in (OPEN, SEALED) and each.is_file()]
        found = [segment for path in files if (segment := self._segment(path)) is not None]
        if not found:
            raise TapeError(self._none(len(files)))
        return sorted(found, key=lambda segment: (segment.counted.first_ns, segment.path))

    def _segment(self, path: Path) -> Segment | None:
        try:
            return read_segment(path)
        except FileNotFoundError:
            sealed = path.with_suffix(SEALED)  # its server has sealed it since the directory was listed
            return self._segment(sealed) if path.suffix == OPEN else None
        except (TapeError, OSError) as error:
            self.unreadable[path] = str(error)
            return None

    def _none(self, files: int) -> str:
        if not files:
            return f"'{self.path}' has no tape: no file *{SEALED} or *{OPEN}"
        return f"'{self.path}' has no tape that can be read: {next(iter(self.unreadable.values()))}"

    def rows(
        self,
        where: Where | None = None,
        models: Collection[str] | None = None,
        newest_first: bool = False,
        bodies: bool = True,
    ) -> Iterator[Row]:
        """Yield the rows in the order of their arrival, over all ingresses.

        One row is in memory at a time, and where the rows of the segments that are being read are. Of rows
        that are not chosen the tensors are not read. Of a segment and its copies one is read.

        Args:
            where: chooses rows.
            models: names of models; None for all.
            newest_first: the latest arrival first.
            bodies: False to leave the data of all tensors empty, which are not read then.
        """
        sign = -1 if newest_first else 1
        segments = [each for each in _once(self.segments()) if _may(each, models)]
        waiting = [(_start(each, newest_first), str(each.path)) for each in segments]
        heapq.heapify(waiting)
        reading: list[tuple[int, str, int, _Reading]] = []
        while waiting or reading:
            while waiting and (not reading or waiting[0][0] <= reading[0][0]):
                _, path = heapq.heappop(waiting)
                opened = self._open(Path(path), newest_first)
                if opened is not None:
                    heapq.heappush(reading, (sign * opened.moment, path, 0, opened))
            if not reading:
                continue
            _, path, number, file = heapq.heappop(reading)
            row = self._read(file, where, models, bodies)
            if file.step():
                heapq.heappush(reading, (sign * file.moment, path, number + 1, file))
            if row is not None:
                yield row

    def _open(self, path: Path, newest_first: bool) -> "_Reading | None":
        try:
            opened = _Reading(path if path.exists() else path.with_suffix(SEALED), newest_first)
        except (TapeError, OSError) as error:
            self.unreadable[path] = str(error)
            return None
        self.damaged.pop(Path(opened.file.path), None)  # of the time before: rows are counted once
        if opened.lost:
            self.damaged[Path(opened.file.path)] = opened.lost
        return opened if opened.step() else None

    def _read(
        self, file: "_Reading", where: Where | None, models: Collection[str] | None, bodies: bool
    ) -> Row | None:
        try:
            chosen = where is not None or models is not None
            row = decode_row(file.file, file.place, bodies and not chosen)
            if not chosen:
                return row
            if (models is not None and row.model not in models) or (where is not None and not where(row)):
                return None
            return decode_row(file.file, file.place) if bodies else row
        except TapeError:
            path = Path(file.file.path)
            self.damaged[path] = self.damaged.get(path, 0) + 1
            return None


class _Reading:
    """A segment that is being read; closed behind its last row, or with its last reference.

    Attributes:
        lost: rows that a sealed one has had besides those that are found.
    """

    def __init__(self, path: Path, newest_first: bool) -> None:
        self.file = RecordFile(path)
        moments, starts = array("q"), array("Q")
        for place in self.file.places():
            if place.kind == ROW:
                moments.append(place.moment)
                starts.append(place.start)
        # A server writes a row when it is answered: sorted, they are in the order of their arrival.
        order = np.argsort(np.frombuffer(moments, np.int64), kind="stable")
        self._starts = np.frombuffer(starts, np.uint64)[order if newest_first else order[::-1]]
        self._left = len(order)
        self.lost = lost(self.file, len(order)) if path.suffix == SEALED else 0
        self.place: Place

    @property
    def moment(self) -> int:
        """Arrival of the row that is next."""
        return self.place.moment

    def step(self) -> bool:
        """Go to the next row; return whether there is one."""
        while self._left:
            self._left -= 1
            place = self.file.place(int(self._starts[self._left]))
            if place is not None:  # otherwise it was cut off since
                self.place = place
                return True
        self.file.close()
        return False

    def __del__(self) -> None:
        file: Any = getattr(self, "file", None)
        if file is not None:
            file.close()


def rows_missing(path: str | os.PathLike[str], number: int) -> str:
    """Say how many rows of a segment cannot be read."""
    return f"{path}: {number} {'row is' if number == 1 else 'rows are'} damaged or missing"


def _once(segments: list[Segment]) -> Iterable[Segment]:
    """Return segments without copies of others: of the same name and beginning; that with most rows stays."""
    found: dict[tuple[str, int], Segment] = {}
    for segment in segments:
        name = segment.path.stem, segment.counted.first_ns
        if name not in found or segment.counted.rows > found[name].counted.rows:
            found[name] = segment
    return found.values()


def _start(segment: Segment, newest_first: bool) -> int:
    """Return a moment at or before which the rows of a segment begin, in the order that they are read in."""
    return -segment.counted.last_ns if newest_first else segment.counted.first_ns


def _may(segment: Segment, models: Collection[str] | None) -> bool:
    """Return whether a segment has rows of some models."""
    return bool(segment.counted.rows) and (
        models is None or any(name in segment.counted.models for name in models)
    )
