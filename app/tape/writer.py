"""The thread that writes a tape: whatever the disk does, only this thread waits for it."""

import errno
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import msgspec

from app.tape import files
from app.tape.counts import DISK, FAULT, SPACE, TapeCounts
from app.tape.files import SegmentFile
from app.tape.queue import TapeQueue
from app.tape.rows import Waiting, encoded
from app.tape.taken import Taken
from nereid_client.tape.segments import OPEN, Counted

logger = logging.getLogger(__name__)

rest: Final = time.sleep

FLUSH_S: Final = 0.25
"""What a killed process loses at most."""
SYNC_S: Final = 1.0
"""What a loss of power loses at most."""
SEGMENT_BYTES: Final = 64 << 20
SEGMENT_S: Final = 600.0
RETRY_S: Final = 1.0
"""Time after an error of the disk in which it is not tried again."""
RETAIN_S: Final = 60.0
_BATCH_ROWS: Final = 128
"""Rows that are written at once: the event loop waits some 40 us for those that are small."""
_REST_S: Final = 0.002
"""Time between two batches: requests are not to wait for several, one after the other."""
_HURRY_BYTES: Final = 4 << 20
"""Bytes of rows that wait, from which there is no such time."""
_model_of: Final = attrgetter("model")
_moment_of: Final = attrgetter("wall_ns")
_row_of: Final = attrgetter("row")


class Limits(msgspec.Struct, frozen=True):
    """What the files of a tape take.

    Attributes:
        max_bytes: of those of a node.
        max_age_s: of a sealed one, in seconds.
        segment_bytes, segment_s: bytes and age at which a segment is sealed.
    """

    max_bytes: int = 10 << 30
    max_age_s: float = 7 * 86400.0
    segment_bytes: int = SEGMENT_BYTES
    segment_s: float = SEGMENT_S


class TapeWriter:
    """Writes the rows of a queue into segments.

    Args:
        queue: the rows.
        counts: counts what is written and lost.
        directory: of the tape.
        ingress: names this process.
        limits: of the files.
        open_segment: makes the file of a path.
    """

    def __init__(
        self,
        queue: TapeQueue,
        counts: TapeCounts,
        directory: str,
        ingress: str,
        limits: Limits = Limits(),  # noqa: B008
        open_segment: Callable[[Path], SegmentFile] = SegmentFile,
    ) -> None:
        self._queue, self._counts, self._limits = queue, counts, limits
        self._directory, self._ingress, self._open_segment = directory, ingress, open_segment
        self._node: Path | None = None
        self._segment: SegmentFile | None = None
        self._opened = self._synced = self._retained = self._looked = 0.0
        self._refused_until = 0.0
        self._scarce = self._complained = False
        self._number = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tape", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what waits and seal the segment, as far as the disk does that within some seconds."""
        self._ending.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._ending.wait(FLUSH_S):
            self._step()
        self._step()
        self._seal()

    def _step(self) -> None:
        """Write what waits, and look after the files."""
        try:
            self._flush()
            self._tend(time.monotonic())
        except OSError as error:
            self._complain(error)
        except Exception:
            logger.exception("the tape goes on after an error")

    def _flush(self) -> None:
        while batch := self._queue.take(_BATCH_ROWS):
            try:
                self._append(batch)
            finally:
                self._queue.taken_out(sum([row.nbytes for row in batch]))
            if self._ending.is_set():
                continue
            self._tend(time.monotonic())  # under load there are always more rows
            if 0 < self._queue.waiting_bytes < _HURRY_BYTES:
                rest(_REST_S)

    def _append(self, batch: list[Waiting]) -> None:
        """Write some rows, or count them as lost."""
        now = time.monotonic()
        if self._is_scarce(now) or now < self._refused_until:
            self._counts.lost[SPACE if self._scarce else DISK] += len(batch)
            return
        buffers, counted = self._encoded(batch)
        try:
            segment = self._open(now)
            segment.write(buffers)
        except OSError as error:
            self._counts.lost[DISK] += counted.rows
            self._abandon(now, error)
            return
        self._complained = False
        segment.counted.add(counted)
        self._counts.nbytes += counted.nbytes
        self._counts.rows += counted.rows
        if segment.size >= self._limits.segment_bytes:
            self._seal()

    def _encoded(self, batch: list[Waiting]) -> tuple[list[Any], Counted]:
        """Return the buffers of rows, and what they are; those that cannot be written are counted.

        The event loop waits for this thread while it holds the interpreter's lock: of small rows, which may
        be many, nothing is done one by one that can be done to all.
        """
        small = [row for row in batch if type(row.row) is bytes]
        counted = Counted(models={})
        joined = b"".join(map(_row_of, small))
        if small:
            moments = list(map(_moment_of, small))
            models = Counter(map(_model_of, small))
            counted = Counted(len(small), min(moments), max(moments), models, len(joined))
        buffers: list[Any] = [joined]
        for row in batch:
            if isinstance(row.row, Taken):
                buffers += self._made(row.row, counted)
        return buffers, counted

    def _made(self, taken: Taken, counted: Counted) -> list[Any]:
        try:
            parts = encoded(taken, self._ingress)
        except Exception:
            if not self._counts.lost[FAULT]:
                logger.exception("a row of the tape could not be written; more are only counted")
            self._counts.lost[FAULT] += 1
            return []
        counted.count(taken.wall_ns, taken.rules.model, sum(map(len, parts)))
        return parts

    def _open(self, now: float) -> SegmentFile:
        """Return the segment that rows go to; a new one where there is none.

        Raises:
            OSError: it cannot be made.
        """
        if self._segment is None:
            node = self._node_directory()
            self._number += 1
            self._segment = self._open_segment(node / f"{self._ingress}-{self._number:06}{OPEN}")
            self._opened = now
        return self._segment

    def _node_directory(self) -> Path:
        if self._node is None or not self._node.is_dir():
            self._node = files.node_directory(self._directory)
            files.recover(self._node)
        return self._node

    def _tend(self, now: float) -> None:
        """Sync, seal and remove files as it is time for it."""
        segment = self._segment
        if segment is not None and now - self._synced >= SYNC_S:
            self._synced = now
            segment.sync()
            if not segment.is_in_place:  # somebody has removed or renamed it: nobody would find the rows
                self._abandon(now, OSError(errno.ENOENT, "its file is gone", str(segment.path)))
                segment = None
        if segment is not None and now - self._opened >= self._limits.segment_s:
            self._seal()
        if now - self._retained >= RETAIN_S or not self._retained:
            self._retained = now
            self._retain()

    def _seal(self) -> None:
        segment, self._segment = self._segment, None
        if segment is None:
            return
        try:
            segment.seal()
            self._retain()
        except OSError as error:
            self._complain(error)

    def _retain(self) -> None:
        limits = self._limits
        room = max(0, limits.max_bytes - (self._segment.size if self._segment is not None else 0))
        files.retain(self._node_directory(), room, time.time() - limits.max_age_s)

    def _abandon(self, now: float, error: OSError) -> None:
        """Leave a segment that cannot be written as it is; write none for a while."""
        segment, self._segment = self._segment, None
        if segment is not None:
            try:
                segment.seal()
            except OSError:  # the next start seals it
                pass
        self._refused_until = now + RETRY_S
        self._complain(error)

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            logger.warning("the tape in '%s' cannot be written: %s", self._directory, error)
        self._complained = True

    def _is_scarce(self, now: float) -> bool:
        """Return whether little of the disk is free."""
        if now - self._looked >= SYNC_S:
            self._looked = now
            try:
                scarce = files.is_scarce(self._node_directory())
            except OSError:
                return False  # the attempt to write tells
            if scarce and not self._scarce:
                logger.warning(
                    "the tape in '%s' pauses: less than a tenth of the disk is free", self._directory
                )
            self._scarce = scarce
        return self._scarce


def name_of_process() -> str:
    """Return a name for what this process records, which no other has."""
    return f"{time.time_ns() // 1_000_000:x}{os.urandom(3).hex()}"
