"""Chooses the payload of the next request."""

from __future__ import annotations

from collections import deque

from nereid_client.tools.perf.generator.call import Call


class Cycle:
    """All payloads in turn, without end."""

    def __init__(self, payloads: tuple[bytes, ...]) -> None:
        self._payloads, self._next = payloads, 0

    def ready(self) -> bool:
        """Return whether a request may begin now."""
        return True

    def fill(self, call: Call) -> None:
        """Give the call its payload."""
        call.index, self._next = self._next, (self._next + 1) % len(self._payloads)
        call.payload = self._payloads[call.index]

    def free(self, call: Call, ok: bool) -> None:
        """Take note of the end of a call."""


class Sequences:
    """Steps of sequences: a step begins when the one before has ended.

    Sequences run from their first step to the last, over and over; the one that waits longest is the next to
    go on. After a step that failed a sequence begins anew.
    """

    def __init__(self, sequences: tuple[tuple[bytes, ...], ...]) -> None:
        self._sequences = sequences
        self._steps = [0] * len(sequences)
        self._free = deque(range(len(sequences)))

    def ready(self) -> bool:
        """Return whether a request may begin now."""
        return bool(self._free)

    def fill(self, call: Call) -> None:
        """Give the call its payload."""
        call.slot = self._free.popleft()
        call.index = self._steps[call.slot]
        call.payload = self._sequences[call.slot][call.index]

    def free(self, call: Call, ok: bool) -> None:
        """Take note of the end of a call."""
        self._steps[call.slot] = (call.index + 1) % len(self._sequences[call.slot]) if ok else 0
        self._free.append(call.slot)
