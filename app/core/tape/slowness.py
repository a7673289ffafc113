"""Which requests of a model are slow."""

import math
from collections.abc import Callable
from typing import Final

from app.core.tape.spec import SlowRule

_STEP: Final = 0.05
"""How far a limit of slowness moves at a time, as a logarithm."""


class Quantile:
    """Follows a quantile of durations by one number: each moves it a little, up or down.

    Args:
        share: of the durations that are below it.
    """

    __slots__ = ("_down", "_first", "_up", "limit")

    def __init__(self, share: float) -> None:
        self._up, self._down = math.exp(_STEP * share), math.exp(-_STEP * (1 - share))
        self.limit = math.inf
        self._first = round(2 / (1 - share))
        """Durations until it is known what is long."""

    def exceeds(self, duration: int) -> bool:
        """Return whether a duration is above the quantile of those before it."""
        if self._first:
            self._first -= 1
            self.limit = duration if self.limit is math.inf else max(self.limit, duration)
            return False
        above = duration > self.limit
        self.limit *= self._up if above else self._down
        return above


def slowness(rule: SlowRule | None) -> Callable[[int], bool] | None:
    """Return what says whether a request of a duration in ns is slow; None if none is."""
    if rule is None:
        return None
    if rule.quantile is not None:
        return Quantile(rule.quantile).exceeds
    return float((rule.above_ms or 0) * 1e6).__lt__
