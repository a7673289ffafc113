"""The framing of a tape's files: records that a crash cuts off at the end, and nowhere else.

A file begins with `MAGIC`, whose last byte is the version of the format. A record is, little-endian: "REC1",
its kind (1 byte), flags (1), two zero bytes, a moment (8: ns since the epoch), the length of its head (4) and
body (8), the crc32 of all that and the head (4), and that of the body (4); then the head, msgpack, and the
body, raw bytes. A body of more than `CHECKED` bytes has no crc32 (flag 1 is not set): it would cost more than
to write it.
"""

import os
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple
from zlib import crc32

from nereid_client.tape.rows import TapeError

MAGIC: Final = b"NRDTAPE\x01"
CHECKED: Final = 64 << 10
MAX_HEAD: Final = 16 << 20
"""Bytes of a head: what a reader allocates before it has seen whether a record is whole."""

ROW: Final = 1
SUMMARY: Final = 3

_MARK: Final = b"REC1"
_FRAME: Final = struct.Struct("<4sBBxxqIQ")
_SUMS: Final = struct.Struct("<II")
FRAME_BYTES: Final = _FRAME.size + _SUMS.size
_HAS_SUM: Final = 1
_CHUNK: Final = 1 << 16


class Place(NamedTuple):
    """Where a record is in its file.

    Attributes:
        kind: `ROW` or `SUMMARY`.
        moment: ns since the epoch; a row's arrival.
        at: byte of the file at which its head begins.
        head: bytes of its head.
        body: bytes of its body.
        body_sum: crc32 of the body; None if it has none.
    """

    kind: int
    moment: int
    at: int
    head: int
    body: int
    body_sum: int | None

    @property
    def start(self) -> int:
        """The byte at which it begins."""
        return self.at - FRAME_BYTES

    @property
    def end(self) -> int:
        """The byte behind it."""
        return self.at + self.head + self.body


def encode(kind: int, moment: int, head: bytes, body: Sequence[Any] = ()) -> list[Any]:
    """Return the buffers of a record, for `writev`; those of the body are the given ones.

    Args:
        kind: of the record.
        moment: ns since the epoch.
        head: at most `MAX_HEAD` bytes.
        body: contiguous buffers of bytes, of any number and size.

    Raises:
        ValueError: the head is longer.
    """
    if len(head) > MAX_HEAD:
        raise ValueError(f"{len(head)} bytes describe a record, more than {MAX_HEAD}")
    size = sum(map(len, body))
    checked = size <= CHECKED
    body_sum = 0
    if checked:
        for part in body:
            body_sum = crc32(part, body_sum)
    frame = _FRAME.pack(_MARK, kind, _HAS_SUM if checked else 0, moment, len(head), size)
    return [frame + _SUMS.pack(crc32(head, crc32(frame)), body_sum) + head, *body]


class RecordFile:
    """A file of records, open for reading; only whole records are seen.

    Raises:
        TapeError: it is no such file, or one of a newer version.
        OSError: it cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        # Not blocked by a FIFO; its size is that of now: a writer may append meanwhile.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self._window, self._begin = b"", 0
        try:
            self.size = os.fstat(self._descriptor).st_size
            self._require(os.pread(self._descriptor, len(MAGIC), 0) if self.size else b"")
        except BaseException:
            self.close()
            raise

    def _require(self, magic: bytes) -> None:
        if MAGIC.startswith(magic):  # its writer may have been killed before it had written all of that
            return
        if magic[:-1] == MAGIC[:-1] and len(magic) == len(MAGIC):
            raise TapeError(f"'{self.path}' is a tape of version {magic[-1]}, which this program cannot read")
        raise TapeError(f"'{self.path}' is no file of a tape")

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> "RecordFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def places(self, start: int = len(MAGIC)) -> Iterator[Place]:
        """Yield the whole records from a byte on; the first that is not whole ends them."""
        place = self.place(start)
        while place is not None:
            yield place
            place = self.place(place.end)

    def place(self, at: int) -> Place | None:
        """Return the record whose frame begins at a byte; None if there is no whole one."""
        after = at + FRAME_BYTES
        if at < len(MAGIC) or after > self.size:
            return None
        frame = self._read(at, FRAME_BYTES)
        if len(frame) < FRAME_BYTES:  # it became shorter
            return None
        mark, kind, flags, moment, head, body = _FRAME.unpack_from(frame)
        head_sum, body_sum = _SUMS.unpack_from(frame, _FRAME.size)
        if mark != _MARK or head > MAX_HEAD or after + head + body > self.size:
            return None
        if crc32(self._read(after, head), crc32(frame[: _FRAME.size])) != head_sum:
            return None
        return Place(kind, moment, after, head, body, body_sum if flags & _HAS_SUM else None)

    def tail(self, size: int) -> bytes:
        """Return the last bytes of the file."""
        return self._read(max(0, self.size - size), min(size, self.size))

    def head(self, place: Place) -> bytes:
        """Return the head of a record."""
        return self._read(place.at, place.head)

    def body(self, place: Place) -> bytes:
        """Return the body of a record.

        Raises:
            TapeError: its bytes are not those that were written.
        """
        found = self._read(place.at + place.head, place.body)
        if len(found) < place.body or (place.body_sum is not None and crc32(found) != place.body_sum):
            raise TapeError(f"'{self.path}' is damaged at byte {place.at + place.head}")
        return found

    def _read(self, at: int, size: int) -> bytes:
        begin = at - self._begin
        if size < _CHUNK:  # most records are small: one read for many of them
            if not 0 <= begin <= len(self._window) - size:
                self._window, self._begin = os.pread(self._descriptor, _CHUNK, at), at
                begin = 0
            return self._window[begin : begin + size]
        found = os.pread(self._descriptor, size, at)
        while len(found) < size:  # a read returns at most 2 GiB
            more = os.pread(self._descriptor, size - len(found), at + len(found))
            if not more:
                break
            found += more
        return found

    def whole(self) -> int:
        """Return how many bytes of the file are its beginning and whole records."""
        end = len(MAGIC) if self.size >= len(MAGIC) else 0
        for place in self.places():
            end = place.end
        return end
