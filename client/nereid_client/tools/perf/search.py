"""The search for the highest rate that keeps an objective. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from nereid_client.tools.digits import four_digits

_PROBE: Final = (2.0, 10.0, 300)
"""Seconds of a probe: at least, at most, and as many as so many requests take."""
_LONG: Final = (10.0, 30.0, 1650)
"""The same of the measurement that decides."""
_AROUND_S: Final = 1.5
"""Of a measurement beyond its seconds: warm-up, connections."""
_DOUBLED: Final = 2.0
_CHANCES: Final = 2
_LARGEST_STEP: Final = 4.0
_LOWEST: Final = 0.2
_PROBES: Final = (3, 7)
"""Probes between the rates that were and were not kept: at least and at most."""
_SURE: Final = 0.025
"""The search is over when the limit is known up to this share."""
_SLOPES: Final = (1.5, 3, 6, 12, 25)
_NOISE: Final = 0.25
_LONG_COUNTS: Final = 3
_STEP_DOWN: Final = 0.96
_MARGIN: Final = 0.85
"""Of the estimate, when there is time for one measurement more."""
_NEAR: Final = 0.8
_LESS: Final = 0.96
"""The share of a decided rate that is told from the share `_NEAR` of the capacity on.

There a server that takes 4% longer for a request, as machines do in other minutes, doubles the latency.
"""


@dataclass(frozen=True)
class Tried:
    """A rate that was measured.

    Attributes:
        asked: requests a second that were to begin.
        offered: that did: arrivals are drawn by chance.
        excess: logarithm of the worst figure as a share of its limit; the objective is kept below 0.
        long: whether it could decide.
    """

    asked: float
    offered: float
    excess: float
    long: bool = False

    @property
    def kept(self) -> bool:
        """Whether the objective was kept."""
        return self.excess < 0


@dataclass(frozen=True)
class Found:
    """The result of a search.

    Attributes:
        rate: of the long measurement that kept the objective, or a little less; 0 if none did.
        why: nothing was found; "" if something was.
    """

    rate: float
    tried: tuple[Tried, ...]
    why: str = ""


def seconds(rate: float, long: bool) -> float:
    """Return how long a rate is measured: until so many requests have come, within bounds."""
    least, most, requests = _LONG if long else _PROBE
    return min(max(least, requests / rate), most)


Ask = Callable[[float, bool], Tried]
"""Measures a rate, with arrivals that no other measurement has had; long, if that is to decide."""


@dataclass
class Search:
    """A search for the highest rate that keeps an objective.

    It doubles the rate until the objective is broken, measures where the figures so far put the limit, and
    has a long measurement decide. What that refutes is lowered, and decided again.

    Args:
        ask: measures a rate.
        left: returns the seconds that are left; what takes longer does not begin.
        seconds: returns how long a rate is measured.
        capacity: what the server answers a second at most.
    """

    ask: Ask
    left: Callable[[], float]
    seconds: Callable[[float, bool], float] = seconds
    capacity: float = math.inf
    tried: list[Tried] = field(default_factory=list)

    def run(self, first: float, factor: float = _DOUBLED) -> Found:
        """Return what is found, from a rate on, by steps of a factor until the limit is between two."""
        if not self._bracket(first, factor):
            return self._nothing()
        least, most = _PROBES
        for number in range(most):
            rate, spread = limit(self.tried)
            if (number >= least and spread < _SURE) or not self._fits(rate, long=False, then=2):
                break
            self._measure(rate)
        return self._decided()

    def _decided(self) -> Found:
        """Let a long measurement decide; what it refutes is lowered, and decided again."""
        bound = math.inf
        while True:
            rate = min(limit(self.tried)[0], bound)
            if not self._fits(rate, long=True, then=1):
                rate *= _MARGIN
            if rate < _LOWEST or not self._fits(rate, long=True):
                return self._nothing()
            last = self._measure(rate, long=True)
            if last.kept:
                return Found(self._told(min(last.asked, last.offered)), tuple(self.tried))
            bound = _STEP_DOWN * last.asked

    def _told(self, rate: float) -> float:
        return rate if rate < _NEAR * self.capacity else _LESS * rate

    def _bracket(self, first: float, factor: float) -> bool:
        """Measure rates until one is kept and the next is not; return whether one was kept."""
        rate = _rounded(first)
        kept = up = self._asked(rate)
        while kept == up and self._fits(rate, long=False, then=1):
            if not up and rate <= _LOWEST:
                return False
            rate = _rounded(rate * factor if up else rate / factor)
            factor = factor if up else min(factor**2, _LARGEST_STEP)  # far off
            kept = self._asked(rate)
        return up or kept

    def _asked(self, rate: float) -> bool:
        """Measure a rate, and once more after a no: a pause of the machine is no limit of the server."""
        return any(self._measure(rate).kept for _ in range(_CHANCES))

    def _measure(self, rate: float, long: bool = False) -> Tried:
        self.tried.append(self.ask(_rounded(rate), long))
        return self.tried[-1]

    def _fits(self, rate: float, long: bool, then: int = 0) -> bool:
        """Return whether there is time for a measurement, and so many long ones after it."""
        needed = self.seconds(rate, long) + then * self.seconds(rate, True) + (1 + then) * _AROUND_S
        return self.left() >= needed

    def _nothing(self) -> Found:
        kept = [each for each in self.tried if each.kept and not each.long]
        if not kept:
            return Found(0.0, tuple(self.tried), f"not even {four_digits(self.tried[-1].asked)}/s does")
        most = max(each.asked for each in kept)
        why = (
            f"{four_digits(most)}/s did for a short time, and no long measurement in the time that there was"
        )
        return Found(0.0, tuple(self.tried), why)


def limit(tried: Sequence[Tried]) -> tuple[float, float]:
    """Return the rate at which measurements put the limit, and by what share of it that is unsure.

    The logarithm of a latency rises with that of the rate, by an unknown slope; what is far from the limit
    says on which side it is. A measurement that contradicts all others counts little (Student's t).
    """
    asked = np.log([each.offered or each.asked for each in tried])
    found = np.arange(asked.min() - 0.4, asked.max() + 0.4, 0.005)
    likely = np.zeros((len(_SLOPES), len(found)))
    for at, each in zip(asked, tried, strict=True):
        expected = np.clip(np.outer(_SLOPES, at - found), -1, 1)
        off = (np.clip(each.excess, -1, 1) - expected) / _NOISE
        likely -= 1.5 * (_LONG_COUNTS if each.long else 1) * np.log1p(off**2 / 2)
    share = np.exp(likely - likely.max()).sum(axis=0)
    share /= share.sum()
    mean = float(share @ found)
    return math.exp(mean), float(share @ (found - mean) ** 2) ** 0.5


def _rounded(rate: float) -> float:
    """Return a rate that is easy to read."""
    return float(f"{rate:.3g}")
