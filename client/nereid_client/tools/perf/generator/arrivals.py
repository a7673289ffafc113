"""When requests of an open loop begin: drawn before the run, so that nothing the server does moves them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

Offsets = np.ndarray[Any, np.dtype[np.int64]]
"""Nanoseconds after the begin of a load, ascending."""

DISTRIBUTIONS: Final = ("poisson", "constant")


Seed = int | Sequence[int]

_DRAWS: Final = 20
_CHOSEN: Final = 16
"""The place among them, from the easiest, of the moments that are taken: four of five are easier."""
_MORE: Final = 1.0
"""Standard deviations by which the number of requests is above what is usual."""
_MOST: Final = 200_000
"""Moments; more are much alike."""


def draw(distribution: str, rate: float, seconds: float, seed: Seed) -> Offsets:
    """Return the moments of a load of `rate` requests a second.

    Args:
        distribution: "poisson", as of many clients who know nothing of each other, or "constant".
    """
    if distribution == "constant":
        return (np.arange(int(rate * seconds)) * (1e9 / rate)).astype(np.int64)
    random = np.random.default_rng(seed)
    expected = rate * seconds
    gaps = random.exponential(1e9 / rate, int(expected + 10 * expected**0.5 + 10))
    moments = np.cumsum(gaps).astype(np.int64)
    return moments[moments < seconds * 1e9]


def draw_hard(
    distribution: str, rate: float, seconds: float, seed: Sequence[int], capacity: float
) -> Offsets:
    """Return moments that are harder for a server than most draws are.

    What one draw shows, another one may refute: by chance requests are more or fewer, and come in crowds or
    do not. How hard moments are is told by a queue that answers `capacity` requests a second, one by one.
    """
    number = round(rate * seconds + _MORE * (rate * seconds) ** 0.5)
    if distribution == "constant" or number > _MOST:
        return draw(distribution, rate, seconds, seed)
    random = np.random.default_rng(seed)
    # A Poisson process of which the number is known, so that no draw is hard by having more of them.
    draws = np.sort(random.random((_DRAWS, number)), axis=1) * (seconds * 1e9)
    each_ns = 1e9 / max(capacity, 1.02 * rate)
    chosen: Offsets = sorted(draws.astype(np.int64), key=lambda each: _queued_p99(each, each_ns))[_CHOSEN]
    return chosen


def _queued_p99(moments: Offsets, each_ns: float) -> float:
    """Return the 99th percentile of the waits for a server that takes the same time for each request."""
    if not len(moments):
        return 0.0
    before = np.arange(len(moments)) * each_ns
    begins = np.maximum.accumulate(moments - before) + before
    return float(np.percentile(begins - moments, 99))


def read_intervals(path: Path) -> Offsets:
    """Return the pauses of a file, one a line in microseconds, as nanoseconds.

    Raises:
        ValueError: a line is no number, all are 0, or there are none.
        OSError: the file cannot be read.
    """
    pauses = [float(line) * 1e3 for line in path.read_text().split()]
    if not pauses or min(pauses) < 0 or not sum(pauses):
        raise ValueError(f"{path} has no pauses: give microseconds, one number a line")
    return np.array(pauses).astype(np.int64)


def repeated(pauses: Offsets, seconds: float) -> Offsets:
    """Return the moments of requests with these pauses before them, over and over."""
    times = int(seconds * 1e9 / pauses.sum()) + 1
    moments = np.cumsum(np.tile(pauses, times))
    return moments[moments < seconds * 1e9]


def dealt(moments: Offsets, hands: int) -> list[Offsets]:
    """Return the moments of each of several generators, in turn."""
    return [moments[hand::hands] for hand in range(hands)]
