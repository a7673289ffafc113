"""Notices a model that keeps the event loop of its replica busy."""

import logging
import time
from collections.abc import Callable
from typing import Final

logger = logging.getLogger(__name__)

SLOW_S: Final = 1.0
"""A model that kept the loop this long never executes there again: requests of others time out meanwhile."""

STUCK_S: Final = 30.0
"""A replica whose loop is kept this long is replaced: cancellation and draining depend on that loop."""


class LoopWatchdog:
    """Measures how long executions of one model keep the event loop of its replica.

    `enter` and `leave` are called on the loop. `check` is called by the replica's health check, on another
    thread, every second: so no thread of its own is needed to see an execution that does not return.

    Attributes:
        tripped: an execution took longer than `SLOW_S`.
    """

    def __init__(self, model: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._model = model
        self._clock = clock
        self._busy_since = 0.0  # 0: no execution is on the loop
        self.tripped = False

    def enter(self) -> float:
        """Begin a stretch on the loop, which may be within another; return the argument of `leave`."""
        outer = self._busy_since
        if not outer:
            self._busy_since = self._clock()
        return outer

    def leave(self, outer: float = 0.0) -> None:
        """End a stretch that `enter` began, or that is suspended."""
        if not outer:
            busy_s = self._clock() - self._busy_since
            self._busy_since = 0.0
            if busy_s > SLOW_S:
                self._trip(busy_s)

    def check(self) -> str:
        """Return why the replica has to be replaced; empty if it has not."""
        since = self._busy_since
        busy_s = self._clock() - since if since else 0.0
        if busy_s > SLOW_S:
            self._trip(busy_s)
        return self._text(busy_s) if busy_s > STUCK_S else ""

    def _trip(self, busy_s: float) -> None:
        if not self.tripped:
            self.tripped = True
            logger.warning("%s; from now on it executes on its instance's thread", self._text(busy_s))

    def _text(self, busy_s: float) -> str:
        return f"model '{self._model}' has kept the event loop of its replica busy for {busy_s:.1f} s"
