"""Chooses at random which requests of a model are counted: at most so many rows a second."""

import math
import random
from collections.abc import Callable
from typing import Final

MOST_ROWS: Final = 64
"""Rows of a request that are counted; of a longer batch these at random."""
_ADJUST_S: Final = 0.5
_STEADY: Final = 0.9
"""How much of the mean number of rows stays with each request that is looked at."""


class Sampler:
    """Draws how many requests pass until the next one that is counted: one that is not costs a subtraction.

    The share of requests follows their rate; a bucket of tokens bounds the rows whatever the rate does.

    Attributes:
        limit: rows a second.
        left: requests until the next one that is counted, itself included.
    """

    __slots__ = ("_at", "_drawn", "_filled", "_passed", "_random", "_rows", "_tokens", "left", "limit")

    def __init__(self, limit: float, now: float, draw: Callable[[], float] = random.random) -> None:
        """Count at most `limit` rows a second."""
        self.limit, self._random = limit, draw
        self._at = self._filled = now
        self._tokens, self._rows = limit, 1.0
        self._drawn = self.left = 1
        self._passed = 0

    def take(self, rows: int, now: float) -> int:
        """Return how many rows of this request are counted, none perhaps; draw the next one."""
        self._passed += self._drawn
        self._rows = _STEADY * self._rows + (1 - _STEADY) * min(rows, MOST_ROWS)
        self._tokens = min(self._tokens + (now - self._filled) * self.limit, max(self.limit, MOST_ROWS))
        self._filled = now
        self._draw(now)
        taken = min(rows, MOST_ROWS, int(self._tokens))
        self._tokens -= taken
        return taken

    def refresh(self, now: float) -> None:
        """Draw anew by the rate of late, which may be much lower than that of the last draw."""
        self._passed += self._drawn - self.left
        self._draw(now)

    def _draw(self, now: float) -> None:
        elapsed = now - self._at
        share = self.limit * max(elapsed, 1e-9) / max(self._passed * self._rows, 1e-9)
        if elapsed >= _ADJUST_S:
            self._at, self._passed = now, 0
        elif self._passed * self._rows < self.limit * _ADJUST_S:
            share = 1.0  # too little was seen to count fewer
        self._drawn = 1 if share >= 1 else 1 + int(math.log(1 - self._random()) / math.log1p(-share))
        self.left = self._drawn
