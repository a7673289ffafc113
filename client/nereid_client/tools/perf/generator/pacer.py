"""Wake-ups of an event loop at moments that were drawn before, to microseconds.

Timers of event loops have a resolution of a millisecond, which is a whole latency here: Linux's timerfd has
nanoseconds. A process that sleeps needs some 50 us more to run again, so it is woken before, and looks at the
clock until the moment has come.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable, Sequence
from typing import Final

_MONOTONIC: Final = 1
_NONBLOCK: Final = os.O_NONBLOCK | os.O_CLOEXEC
_ABSOLUTE: Final = 1
_AHEAD_NS: Final = 150_000
_AHEAD_SHARE: Final = 0.1
"""Of the mean time between moments, at most: looking at the clock takes a processor."""


class _Spec(ctypes.Structure):
    """`struct itimerspec`: an interval, and the moment of the next wake-up."""

    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "at_s", "at_ns")]


_libc = ctypes.CDLL(None, use_errno=True)


class Pacer:
    """Calls `arrive(intended, noticed)` at each moment, or as soon after it as this process runs.

    Args:
        moments: nanoseconds of the monotonic clock, ascending.
        meanwhile: is called over and over while a moment is awaited.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        moments: Sequence[int],
        arrive: Callable[[int, int], None],
        meanwhile: Callable[[], None],
    ) -> None:
        self._loop, self._moments, self._arrive, self._meanwhile = loop, moments, arrive, meanwhile
        self._ahead = ahead(moments)
        self._next = 0
        self._file = _libc.timerfd_create(_MONOTONIC, _NONBLOCK)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        loop.add_reader(self._file, self._wake)
        self._arm()

    def close(self) -> None:
        """Call nothing any more."""
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1

    def _arm(self) -> None:
        if self._next < len(self._moments):
            seconds, nanoseconds = divmod(max(self._moments[self._next] - self._ahead, 1), 10**9)
            spec = _Spec(0, 0, seconds, nanoseconds)
            _libc.timerfd_settime(self._file, _ABSOLUTE, ctypes.byref(spec), None)

    def _wake(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:
            return
        moments, position = self._moments, self._next
        now = time.monotonic_ns()
        while position < len(moments) and moments[position] <= now + self._ahead:
            while now < moments[position]:
                self._meanwhile()
                now = time.monotonic_ns()
            self._arrive(moments[position], now)
            position += 1
            now = time.monotonic_ns()
        self._next = position
        self._arm()


def ahead(moments: Sequence[int]) -> int:
    """Return how many nanoseconds before each of these moments it is worth being awake."""
    if len(moments) < 2:
        return 0
    return min(_AHEAD_NS, int(_AHEAD_SHARE * (moments[-1] - moments[0]) / (len(moments) - 1)))
