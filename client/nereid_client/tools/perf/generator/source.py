"""Requests that are to begin, and the payload that each takes."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from nereid_client.tools.perf.generator.call import Call
from nereid_client.tools.perf.generator.job import Job
from nereid_client.tools.perf.generator.script import Scripted


class Source(Protocol):
    """What a generator sends."""

    def add(self, intended: int, noticed: int) -> None:
        """Take note of a request that is to begin."""

    def ready(self) -> int:
        """Return how many requests may begin now."""

    def take(self) -> Call:
        """Return the request that begins now, with its payload; there is one."""

    def overdue(self, before: int) -> Call | None:
        """Return a request that was to begin before a moment, and will not; None if there is none."""

    def fill(self, call: Call) -> None:
        """Give the call the next payload."""

    def free(self, call: Call, ok: bool) -> None:
        """Take note of the end of a call that had begun."""


class Cycle:
    """All payloads in turn, without end."""

    def __init__(self, payloads: tuple[bytes, ...]) -> None:
        self._payloads, self._next = payloads, 0
        self._waiting: deque[tuple[int, int]] = deque()

    def add(self, intended: int, noticed: int) -> None:
        self._waiting.append((intended, noticed))

    def ready(self) -> int:
        return len(self._waiting)

    def take(self) -> Call:
        call = Call(*self._waiting.popleft())
        self.fill(call)
        return call

    def overdue(self, before: int) -> Call | None:
        return Call(*self._waiting.popleft()) if self._waiting and self._waiting[0][0] < before else None

    def fill(self, call: Call) -> None:
        call.index, self._next = self._next, (self._next + 1) % len(self._payloads)
        call.payload = self._payloads[call.index]

    def free(self, call: Call, ok: bool) -> None:
        pass


class Sequences(Cycle):
    """Steps of sequences: a step begins when the one before has ended.

    Sequences run from their first step to the last, over and over; the one that waits longest is the next to
    go on. After a step that failed a sequence begins anew.
    """

    def __init__(self, sequences: tuple[tuple[bytes, ...], ...]) -> None:
        super().__init__(())
        self._sequences = sequences
        self._steps = [0] * len(sequences)
        self._free = deque(range(len(sequences)))

    def ready(self) -> int:
        return min(len(self._waiting), len(self._free))

    def fill(self, call: Call) -> None:
        call.slot = self._free.popleft()
        call.index = self._steps[call.slot]
        call.payload = self._sequences[call.slot][call.index]

    def free(self, call: Call, ok: bool) -> None:
        self._steps[call.slot] = (call.index + 1) % len(self._sequences[call.slot]) if ok else 0
        self._free.append(call.slot)


def source_of(job: Job) -> Source:
    """Return what the requests of a job are."""
    if job.script is not None:
        return Scripted(job.script, job.arrivals is None)
    return Sequences(job.sequences) if job.sequences else Cycle(job.payloads)
