"""The rows of a node's tape that can be repeated at a candidate, read one at a time. Blocks for the disk."""

import fcntl
import heapq
import os
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from app.core.rollout.tape import PARTS, TapeWork
from nereid_client.tape.reader import Tape
from nereid_client.tape.records import ROW, RecordFile
from nereid_client.tape.rows import KEPT, Row, TapeError
from nereid_client.tape.segments import OPEN, SEALED, Segment, decode_row

_MINE: Final = "judged-"
"""Begins the names of the files of claims."""
_OLD_S: Final = 86400.0


class Spot(NamedTuple):
    """Where a row is: sorted by the moment at which it arrived, in ns since the epoch."""

    moment: int
    path: Path
    start: int
    part: int


class Chosen(NamedTuple):
    """The newest rows of a model that can be repeated.

    Attributes:
        parts: where they are, in the order of their arrival, by part.
        left_out: newer ones that cannot, by reason.
        mean_gap_s: between two of them.
    """

    parts: dict[int, list[Spot]]
    left_out: Counter[str]
    mean_gap_s: float

    @property
    def rows(self) -> int:
        """How many there are."""
        return sum(map(len, self.parts.values()))


def choose(directory: Path, model: str, work: TapeWork) -> Chosen:
    """Choose rows of a model; the data of their tensors are not read.

    Args:
        directory: of the node's segments.
        model: its name for clients.
        work: says how many, and of which time.

    Raises:
        OSError: the directory cannot be read.
    """
    left_out, newest = Counter[str](), list[Spot]()
    try:
        segments = Tape(directory).segments()
    except TapeError:
        segments = []
    for segment in sorted(segments, key=lambda each: -each.counted.last_ns):
        if len(newest) == work.requests and segment.counted.last_ns < newest[0].moment:
            break
        if model in segment.counted.models:
            _add(newest, left_out, segment, model, work)
    parts: dict[int, list[Spot]] = {}
    for spot in sorted(newest):
        parts.setdefault(spot.part, []).append(spot)
    span_s = (max(newest).moment - min(newest).moment) / 1e9 if newest else 0.0
    return Chosen(parts, left_out, span_s / max(len(newest) - 1, 1))


def _add(newest: list[Spot], left_out: Counter[str], segment: Segment, model: str, work: TapeWork) -> None:
    """Add the rows of a segment to the newest so far."""
    with suppress(OSError, TapeError), _open(segment.path) as file:
        for place in file.places():
            full = len(newest) == work.requests
            late = place.kind != ROW or place.moment >= work.until_ns
            if late or (full and place.moment <= newest[0].moment):
                continue
            row = decode_row(file, place, bodies=False)
            if row.model != model:
                continue
            if why := why_not(row):
                left_out[why] += 1
                continue
            spot = Spot(place.moment, segment.path, place.start, crc32(row.key.encode()) % PARTS)
            (heapq.heapreplace if full else heapq.heappush)(newest, spot)


def why_not(row: Row) -> str:
    """Return why a row says nothing of a candidate; "" if it may."""
    if row.sequence_id:
        return "it belongs to a sequence"
    if row.failed or not row.responses:
        return "it was not answered"
    return row.why_not


def read(spot: Spot) -> Row | None:
    """Read a row; None if it has been removed since."""
    try:
        with _open(spot.path) as file:
            place = file.place(spot.start)
            return decode_row(file, place) if place is not None else None
    except (OSError, TapeError):
        return None


def is_kept(row: Row) -> bool:
    """Return whether the tape has all values of the answer, which is one response."""
    outputs = [response.outputs for response in row.responses if response.outputs]
    return len(outputs) == 1 and all(tensor.state == KEPT for tensor in outputs[0])


def _open(path: Path) -> RecordFile:
    try:
        return RecordFile(path)
    except FileNotFoundError:
        if path.suffix != OPEN:
            raise
        return RecordFile(path.with_suffix(SEALED))  # it was sealed since


class Claims:
    """Which parts of a tape an ingress repeats: the others of its node repeat the others.

    A part is claimed by a lock on a byte of a file, which ends with the process; the byte says whether the
    part is counted.

    Args:
        directory: of the node's segments.
        rollout, step: of which the parts are.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, directory: Path, rollout: str, step: int) -> None:
        for old in directory.glob(f"{_MINE}*"):
            with suppress(OSError):
                if time.time() - old.stat().st_mtime > _OLD_S:
                    old.unlink()
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(directory / f"{_MINE}{rollout}-{step}", flags, 0o600)

    def claim(self, part: int) -> bool:
        """Claim a part; return whether nobody else has it, and it is not counted."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, part)
        except OSError:
            return False
        if self.is_counted(part):
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, part)
            return False
        return True

    def is_counted(self, part: int) -> bool:
        """Return whether the manager has counted a part."""
        return os.pread(self._file, 1, part) == b"\1"

    def count(self, part: int) -> None:
        """Note that the manager has counted a part that is claimed."""
        os.pwrite(self._file, b"\1", part)
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, part)

    def close(self) -> None:
        """Give up what is claimed."""
        os.close(self._file)
