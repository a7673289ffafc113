"""The silence of a replica, in seconds, by which the client end of a channel judges it."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Final

from app.core.system.tasks import Tasks

_MISSED: Final = 3
"""Heartbeats without an answer after which a replica is suspected."""


def is_suspect(silence: float, period: float) -> bool:
    """Return whether a replica that has been silent for so long is to be avoided.

    A heartbeat is answered within milliseconds, so that at the third one after the last answer the silence is
    just under three periods.
    """
    return silence > (_MISSED - 0.5) * period


class Silence:
    """Measures how long nothing has come from a peer; `at_beat` is called every `period` seconds.

    Times are those of the event loop. Without cost to requests, what they move counts as a sign of life: a
    large frame that arrives, and a send buffer that the peer empties.
    """

    def __init__(self, period: float, now: float) -> None:
        self._period = period
        self._beat_at = now
        self._heard_at = now
        self._unparsed = 0
        self._unsent = 0

    def heard(self, now: float) -> None:
        """Record an answer."""
        self._heard_at = now

    def at_beat(self, now: float, unparsed: int, unsent: int) -> float:
        """Return the seconds of silence.

        Args:
            now: the time.
            unparsed: the received bytes of a frame that is not complete.
            unsent: the bytes in the send buffer; only the peer can make them fewer.
        """
        late = now - self._beat_at - self._period
        if late > self._period / 2:  # this process was busy, and what arrived meanwhile is still unread
            self._heard_at = min(self._heard_at + late, now)
        if unparsed != self._unparsed or unsent < self._unsent:
            self._heard_at = now
        self._beat_at, self._unparsed, self._unsent = now, unparsed, unsent
        return now - self._heard_at


class Excuse:
    """Asks whether a silent replica is busy executing its model, as long as it is silent.

    Args:
        ask: asks what watches the replica.
        period: seconds between two heartbeats.
    """

    def __init__(self, ask: Callable[[], Awaitable[bool]], period: float) -> None:
        self._ask = ask
        self._holds_s = (_MISSED - 0.5) * period
        self._tasks = Tasks()
        self._holds_until = 0.0
        self._busy_at = -math.inf
        self._silences = 0

    def unexplained(self, silence: float, now: float) -> float:
        """Return the seconds of silence after the replica was last known to be busy.

        0 as long as that may be recent, or is being asked for the first time.
        """
        if not self._holds_until:
            self._holds_until = now + self._holds_s
        if not self._tasks:
            self._tasks.start(self._inquire(self._silences))
        return 0.0 if now < self._holds_until else min(silence, now - self._busy_at)

    def reset(self) -> None:
        """Note that the replica answers."""
        self._holds_until, self._busy_at = 0.0, -math.inf
        self._silences += 1

    async def _inquire(self, silence: int) -> None:
        if await self._ask() and silence == self._silences:  # else it is over
            self._busy_at = asyncio.get_running_loop().time()
            self._holds_until = self._busy_at + self._holds_s
