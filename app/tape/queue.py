"""Rows between the event loop, which makes them, and the thread that writes them: bounded, never waiting."""

from collections import deque
from collections.abc import Callable
from time import monotonic, monotonic_ns, time_ns
from typing import Final

from app.core.tensors import InferRequest, InferResponse
from app.tape.counts import QUEUE, RATE_LIMIT, SEQUENCE, TapeCounts
from app.tape.rows import Waiting, encoded, is_small, plain_row
from app.tape.taken import MAX_ROW_BYTES, Rules, Taken

WAITING_BYTES: Final = 32 << 20
"""Bytes of rows that wait to be written."""
COLLECTED_BYTES: Final = 64 << 20
"""Bytes of responses of requests in flight that are kept for their rows."""
MAX_CUT: Final = 4096
"""Sequences of which a row was dropped, and no more are recorded."""


class TokenBucket:
    """Bytes a second: so many may be spent at once as come in a second, or make the largest row.

    Args:
        rate: bytes a second; 0 for no limit.
        clock: returns seconds.
    """

    def __init__(self, rate: float, clock: Callable[[], float] = monotonic) -> None:
        self._rate, self._clock = rate, clock
        self._most = max(rate, 2.0 * MAX_ROW_BYTES)
        self._left, self._at = self._most, clock()

    def take(self, nbytes: int) -> bool:
        """Spend bytes; return False, and spend nothing, if there are not so many."""
        if not self._rate:
            return True
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self._rate)
        self._at = now
        if nbytes > self._left:
            return False
        self._left -= nbytes
        return True


class TapeQueue:
    """The rows that wait to be written. The event loop puts them in, one other thread takes them out.

    Args:
        rate: bytes a second; 0 for no limit.
        counts: counts what is dropped.
        ingress: see `Row`.
        waiting_bytes: of the rows that wait.
        clock: returns seconds.

    Attributes:
        collected: bytes of responses of requests in flight.
    """

    def __init__(
        self,
        rate: float,
        counts: TapeCounts,
        ingress: str = "",
        waiting_bytes: int = WAITING_BYTES,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._bucket = TokenBucket(rate, clock)
        self._counts, self._most, self._clock, self._ingress = counts, waiting_bytes, clock, ingress
        self._rows: deque[Waiting] = deque()
        self._number = 0
        self._cut: dict[tuple[str, int | str], None] = {}
        # Each is written by one thread: their difference needs no lock.
        self._put = self._taken = 0
        self.collected = 0

    @property
    def full(self) -> bool:
        """Whether responses of requests in flight keep as much memory as they may."""
        return self.collected > COLLECTED_BYTES

    def put(self, taken: Taken) -> bool:
        """Add a row whose request has been answered; return whether it was not dropped.

        Raises:
            ValueError: its names and parameters are too long.
        """
        if self._cut and taken.in_sequence and self._is_cut(taken):
            self._counts.refused[SEQUENCE] += 1
            return False
        taken.number = self._number + 1
        # A small row is written down at once: later, and by another thread, it would take several times as
        # long, for what it is made of has left the processor's caches.
        row = b"".join(encoded(taken, self._ingress)) if is_small(taken) else taken
        kept = self._add(taken.rules.model, taken.wall_ns, row)
        if not kept:
            self._cut_off(taken)
        return kept

    def put_plain(
        self, rules: Rules, request: InferRequest, response: InferResponse, arrived: int, token: str
    ) -> bool:
        """Add the row of a request that was chosen at random and has its only response, if it is plain.

        Returns:
            False for one that is to be put in as `Taken`.
        """
        offset = monotonic_ns() - arrived
        wall_ns, number = time_ns() - offset, self._number + 1
        moments = wall_ns, arrived, offset
        row = plain_row(rules, self._ingress, number, request, response, moments, token)
        if row is None:
            return False
        self._add(rules.model, wall_ns, row)
        return True

    def _add(self, model: str, wall_ns: int, row: bytes | Taken) -> bool:
        """Add a row; return whether it was not dropped."""
        nbytes = len(row) if isinstance(row, bytes) else row.nbytes
        if self._put - self._taken + nbytes > self._most:
            self._counts.refused[QUEUE] += 1
            return False
        if not self._bucket.take(nbytes):
            self._counts.refused[RATE_LIMIT] += 1
            return False
        self._number += 1
        self._put += nbytes
        self._rows.append(Waiting(self._clock(), model, wall_ns, nbytes, row))
        return True

    def _cut_off(self, taken: Taken) -> None:
        """Record no more of a sequence of which a row is missing: it could not be repeated."""
        request = taken.request
        if taken.in_sequence and not request.sequence_end:
            self._cut[(taken.rules.model, request.sequence_id)] = None
            if len(self._cut) > MAX_CUT:
                self._cut.pop(next(iter(self._cut)))

    def _is_cut(self, taken: Taken) -> bool:
        key = (taken.rules.model, taken.request.sequence_id)
        if key not in self._cut:
            return False
        if taken.request.sequence_start or taken.request.sequence_end:
            del self._cut[key]
        return not taken.request.sequence_start

    def take(self, most: int) -> list[Waiting]:
        """Return the rows that were put in first; none if there is none. `taken_out` is to follow."""
        rows = self._rows
        return [rows.popleft() for _ in range(min(most, len(rows)))]

    def taken_out(self, nbytes: int) -> None:
        """Note that rows of so many bytes are written, or lost: their memory is free again."""
        self._taken += nbytes

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the rows that wait or are being written."""
        return self._put - self._taken

    @property
    def lag_s(self) -> float:
        """Age of the row that has waited for longest, in seconds; 0 without any."""
        try:
            return max(0.0, self._clock() - self._rows[0].at)
        except IndexError:
            return 0.0
