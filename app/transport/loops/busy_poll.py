"""Polling for what a peer will send in a moment, instead of going to sleep.

Waking a thread whose processor sleeps costs the waker and the woken, and on a virtual machine most: with one
client that is half of what a small request takes. An end of a channel that expects something at once
therefore polls for a moment. Where polling was in vain, it becomes rare.
"""

import asyncio
import os
from time import monotonic_ns
from typing import Final

from app.core.system.cpus import available_cpus

_MOST_FAILURES: Final = 8
"""After so many that were in vain, one of 2 ** 8 waits polls: less than 1 us of a wait."""
_yield_processor: Final = getattr(os, "sched_yield", lambda: None)


class BusyPoll:
    """Keeps an event loop awake while a peer is expected to send something.

    All methods run on the loop, which calls everything else meanwhile as it always does.

    Args:
        loop: the event loop.
        limit_us: how many microseconds to poll; 0 never polls.
    """

    __slots__ = ("_ends_ns", "_failures", "_limit_ns", "_loop", "_scheduled", "_skips")

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_us: int) -> None:
        self._loop = loop
        self._limit_ns = limit_us * 1000
        if available_cpus() < 2:  # polling would keep the peer from its processor
            self._limit_ns = 0
        self._ends_ns = 0  # 0 while nothing is expected
        self._scheduled = False
        self._failures = 0
        self._skips = 0

    def begin(self) -> None:
        """Poll from now on, unless that was in vain lately."""
        if self._skips:
            self._skips -= 1
        elif self._limit_ns:
            self._ends_ns = monotonic_ns() + self._limit_ns
            if not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._turn)

    def end(self) -> None:
        """Stop: the peer has sent something."""
        if self._ends_ns:
            self._ends_ns = 0
            if self._failures:
                self._failures -= 1

    def _turn(self) -> None:
        """Have the loop look for events again at once."""
        began_ns = monotonic_ns()
        if self._ends_ns > began_ns:
            _yield_processor()  # to whoever else wants it
            if monotonic_ns() - began_ns <= self._limit_ns:
                self._loop.call_soon(self._turn)
                return
            # Somebody computes: who yields waits for milliseconds, who sleeps is woken at once.
            self._failures = _MOST_FAILURES
        self._scheduled = False
        if self._ends_ns:
            self._ends_ns = 0
            self._failures = min(self._failures + 1, _MOST_FAILURES)
            self._skips = (1 << self._failures) - 1
