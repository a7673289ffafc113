"""When requests of an open loop begin: drawn before the run, so that nothing the server does moves them."""

from pathlib import Path
from typing import Any, Final

import numpy as np

Offsets = np.ndarray[Any, np.dtype[np.int64]]
"""Nanoseconds after the begin of a load, ascending."""

DISTRIBUTIONS: Final = ("poisson", "constant")


def draw(distribution: str, rate: float, seconds: float, seed: int) -> Offsets:
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
