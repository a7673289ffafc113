"""Requests that are each sent once, as a script says, and what was answered to them."""

from __future__ import annotations

from array import array
from collections import deque
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import NamedTuple

from nereid_client.tools.perf.generator.call import Call
from nereid_client.tools.perf.generator.job import End, Script


class _Waiting(NamedTuple):
    place: int
    intended: int
    noticed: int


class Scripted:
    """The requests of a script in their order; a step of a sequence begins when the one before has ended.

    Args:
        closed: a request begins when another one has ended, whatever moment it was to begin at; where its
            sequence holds one back, the next one that may begin takes its place.
    """

    def __init__(self, script: Script, closed: bool) -> None:
        self._closed = closed
        self._rows = script.rows.tolist()
        self._next = 0
        self._ready: deque[_Waiting] = deque()
        self._held: dict[int, deque[_Waiting]] = {}
        """Steps that wait for another one, by their sequence; an empty queue for none that waits."""
        with Path(script.requests).open("rb") as file:
            self._payloads = memoryview(mmap(file.fileno(), 0, access=ACCESS_READ))

    def add(self, intended: int, noticed: int) -> None:
        if self._closed and self._ready:  # the end of a step has let another one begin in its place
            return
        while self._next < len(self._rows):
            place, self._next = self._next, self._next + 1
            began = self._place(_Waiting(place, intended, noticed))
            if began or not self._closed:
                return

    def _place(self, waiting: _Waiting) -> bool:
        """Let a request begin unless its sequence holds it back; return whether it may."""
        sequence = self._rows[waiting.place][3]
        if sequence >= 0:
            if (held := self._held.get(sequence)) is not None:
                held.append(waiting)
                return False
            self._held[sequence] = deque()
        self._ready.append(waiting)
        return True

    def ready(self) -> int:
        return len(self._ready)

    def take(self) -> Call:
        waiting = self._ready.popleft()
        call = Call(waiting.intended, waiting.noticed)
        call.index = waiting.place
        _, offset, size, _, streams = self._rows[waiting.place]
        call.payload = self._payloads[offset : offset + size]
        call.body = []
        if streams:
            call.moments = []
        return call

    def overdue(self, before: int) -> Call | None:
        if not self._ready or self._ready[0].intended >= before:
            return None
        call = self.take()
        self.free(call, False)
        return call

    def fill(self, call: Call) -> None:
        raise NotImplementedError("no request of a script is repeated")

    def free(self, call: Call, ok: bool) -> None:
        sequence = self._rows[call.index][3]
        if sequence < 0:
            return
        if held := self._held[sequence]:
            self._ready.append(held.popleft())
        else:
            del self._held[sequence]


class Kept:
    """Writes answers into a file, as they come: bodies, or the text of a failure.

    The responses of a stream have their length before them, four bytes of it, the most significant first.
    """

    def __init__(self, script: Script) -> None:
        self._numbers = script.rows[:, 0].tolist()
        self._file = open(script.answers, "wb", buffering=1 << 20)  # noqa: SIM115 - closed with the load
        self._end = 0
        self._places = array("q")

    def add(self, call: Call, end: End, text: str) -> None:
        """Keep an answer; the records of the load have the same order."""
        if end is not End.OK:
            pieces = [text.encode(errors="replace")]
        elif call.moments is not None:
            pieces = [part for body in call.body or () for part in (len(body).to_bytes(4), body)]
        else:
            pieces = call.body or []
        self._file.writelines(pieces)
        size = sum(map(len, pieces))
        self._places.extend((self._numbers[call.index], self._end, size))
        self._end += size

    def take(self) -> bytes:
        """Return number, offset and size of what was kept since the last call, int64; all is in the file."""
        if not self._file.closed:
            self._file.flush()
        places, self._places = self._places, array("q")
        return places.tobytes()

    def close(self) -> None:
        """Keep no more."""
        self._file.close()
