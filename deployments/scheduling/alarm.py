"""A timer of a scheduler."""

import asyncio
import time
from collections.abc import Callable


class Alarm:
    """Calls back once, at the earliest of the times that were asked for; on the running loop.

    Args:
        callback: may set the alarm again.
    """

    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback = callback
        self._timer: asyncio.TimerHandle | None = None
        self._when_ns = 0

    def set(self, when_ns: int) -> None:
        """Call back at `when_ns` (`time.monotonic_ns`), or earlier."""
        if self._timer is not None:
            if self._when_ns <= when_ns:
                return
            self._timer.cancel()
        self._when_ns = when_ns
        delay = max(0, when_ns - time.monotonic_ns()) / 1e9
        self._timer = asyncio.get_running_loop().call_later(delay, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._callback()
