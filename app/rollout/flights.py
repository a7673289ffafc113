"""Watches the requests of a rollout that are in flight from this process, for those that get no answer.

A request is *late* when its version has been silent for ten times as long as the stable version's slowest
answers usually take, and *hangs* when it has been for `hang_seconds`. Both are counted, for both versions
alike; what is done about it is the request's matter.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from itertools import takewhile
from statistics import median
from time import monotonic
from typing import Any, Final, Protocol

from app.core.rollout.outcomes import log_bucket
from app.core.rollout.statistics import microseconds, quantile_position

SWEEP_S: Final = 0.25
"""Between two looks at what is in flight, while anything is."""
LATE_S: Final = 1.0
_LATE_TIMES: Final = 10.0
_HANG_TIMES: Final = 2.0
_QUANTILE: Final = 0.99
_FEW: Final = 20
"""Answers without which the stable version's quantile is not known."""
_INTERVAL_S: Final = 1.0
_MANY: Final = 100
"""Answers without which an interval is not over, since it has no such quantile."""
_INTERVALS: Final = 60
"""That are remembered."""
_LATEST: Final = 3
_BLOCKED_S: Final = 0.5
"""By how much a look may come too late before this process is taken to have stood still."""

CallLater = Callable[[float, Callable[[], object]], Any]
"""As `asyncio.AbstractEventLoop.call_later`."""


class Durations:
    """The times that the stable version's answers took lately, by interval.

    A stall makes a hundred answers slow at once. Were answers counted, rather than intervals, one stall
    would hide for minutes that the candidate hangs.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._begun = 0.0
        self._highs: deque[float] = deque(maxlen=_INTERVALS)

    def add(self, seconds: float) -> None:
        """Count an answer."""
        number = log_bucket(seconds * 1e6)
        self._counts[number] = self._counts.get(number, 0) + 1

    def end_interval(self, now: float) -> None:
        """End the present interval, if it is long and has enough answers."""
        if now - self._begun >= _INTERVAL_S and sum(self._counts.values()) >= _MANY:
            self._highs.append(_high(self._counts))
            self._counts.clear()
            self._begun = now

    @property
    def usual(self) -> float:
        """The median of the intervals' 99 % quantiles in seconds; 0 while few answers are known."""
        return median(self._highs) if self._highs else self._present

    @property
    def latest(self) -> float:
        """The highest of the latest intervals: while load rises, more than what is usual."""
        return max([*self._highs][-_LATEST:], default=self._present)

    @property
    def _present(self) -> float:
        return _high(self._counts) if sum(self._counts.values()) >= _FEW else 0.0


def _high(counts: Mapping[int, int]) -> float:
    return microseconds(quantile_position(counts, _QUANTILE)) / 1e6


class Flight(Protocol):
    """A request in flight, as it is watched.

    Attributes:
        heard: when it was sent, or had its last response, on the clock of `Flights.now`.
        hurried: whether it is not waited for once it is late, since its version is withdrawn.
    """

    heard: float
    hurried: bool

    def note_late(self) -> None:
        """Note that it is late."""

    def note_hang(self, seconds: float) -> None:
        """Note that its version has been silent for so many seconds; it is not watched any more."""

    def withdraw(self) -> None:
        """Do without the candidate, which is withdrawn."""


class Flights:
    """The requests of one rollout that are in flight from here. Runs on the data-plane loop.

    Attributes:
        durations: of the stable version's answers.
        hang_seconds: see `RolloutSpec`; longer where the stable version itself takes half of that.
        withdrawn: why the candidate is not served any more; "" while it is.
    """

    def __init__(self, call_later: CallLater | None = None) -> None:
        self._call_later = call_later or _call_later
        self.durations = Durations()
        self.hang_seconds = 10.0
        self.withdrawn = ""
        self._prompt: dict[Flight, None] = {}
        self._late: dict[Flight, None] = {}
        """Both in the order of their silence, the longest first."""
        self._usual = self._latest = 0.0
        self._due: float | None = None
        self._stood_still = 0.0

    def now(self) -> float:
        """Return the time in seconds, without that in which this process stood still."""
        return monotonic() - self._stood_still

    @property
    def hang_s(self) -> float:
        """Seconds of silence after which a request hangs."""
        return max(self.hang_seconds, _HANG_TIMES * self._usual, self._latest)

    @property
    def late_s(self) -> float:
        """Seconds of silence after which a request is late; those of a hang while the usual is not known."""
        return min(max(LATE_S, _LATE_TIMES * self._usual), self.hang_s) if self._usual else self.hang_s

    def add(self, flight: Flight) -> None:
        """Watch a request that is sent, or has had a response."""
        self._late.pop(flight, None)
        self._prompt.pop(flight, None)
        flight.heard = self.now()
        self._prompt[flight] = None
        if self._due is None:
            self._arm()

    def remove(self, flight: Flight) -> None:
        """Stop watching a request."""
        if self._prompt.pop(flight, self) is self:
            self._late.pop(flight, None)

    def withdraw(self, why: str) -> None:
        """Free the requests at the candidate, which nobody serves any more."""
        if not self.withdrawn:
            self.withdrawn = why
            for flight in (*self._late, *self._prompt):
                flight.withdraw()

    def release(self) -> None:
        """Watch none of them any more: the rollout is over, and its candidate serves."""
        self._prompt.clear()
        self._late.clear()

    def sweep(self) -> None:
        """Find the requests that are late, or hang."""
        now = self.now()
        self.durations.end_interval(now)
        self._usual, self._latest = self.durations.usual, self.durations.latest
        late_s, hang_s = self.late_s, self.hang_s
        for flight in list(takewhile(lambda flight: now - flight.heard >= late_s, self._prompt)):
            del self._prompt[flight]
            self._late[flight] = None
            flight.note_late()
        for flight in list(self._late):
            seconds = now - flight.heard
            if (seconds >= hang_s or flight.hurried) and self._late.pop(flight, self) is not self:
                flight.note_hang(seconds)

    def _arm(self) -> None:
        self._due = monotonic() + SWEEP_S
        self._call_later(SWEEP_S, self._look)

    def _look(self) -> None:
        blocked = monotonic() - (self._due or 0.0)
        if blocked > _BLOCKED_S:  # answers that came meanwhile are not read yet
            self._stood_still += blocked
        self.sweep()
        self._due = None
        if self._prompt or self._late:
            self._arm()


def _call_later(delay: float, callback: Callable[[], object]) -> Any:
    return asyncio.get_running_loop().call_later(delay, callback)
