"""Simulates a queue of batches under random arrivals at a given rate. Pure."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from nereid_client.tools.analyze.space import Candidate

_REQUESTS: Final = 2000
_STEPS: Final = 12
_HIGHEST: Final = 1.2
"""Of the rate that full batches would allow."""


@dataclass(frozen=True)
class Costs:
    """What executions were measured to take.

    Attributes:
        seconds: of an execution by its rows, alone, by the number of threads.
        slowdown: of executions by the number of instances that execute at the same time; 1 for one.
        outside: seconds of a request beyond its execution.
    """

    seconds: Mapping[int, Mapping[int, float]]
    slowdown: Mapping[int, float]
    outside: float

    def table(self, candidate: Candidate) -> list[float]:
        """Return the seconds of executions of 0, 1, 2, ... rows."""
        known = sorted(self.seconds[candidate.threads].items())
        rows = np.arange(max(candidate.batch, 1) + 1)
        sizes, times = [size for size, _ in known], [seconds for _, seconds in known]
        found = np.interp(rows, sizes, times)
        if rows[-1] > sizes[-1] and len(sizes) > 1:
            slope = (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
            beyond = rows > sizes[-1]
            found[beyond] = times[-1] + np.maximum(slope, 0) * (rows[beyond] - sizes[-1])
        return [float(seconds) * self.slowdown.get(candidate.instances, 1.0) for seconds in found]


def latencies(candidate: Candidate, costs: Costs, rate: float, seed: int = 0) -> Any:
    """Return the latencies in seconds of requests that arrive by chance at a rate."""
    random = np.random.default_rng(seed)
    arrivals = np.cumsum(random.exponential(1 / rate, _REQUESTS)).tolist()
    seconds, most, delay = costs.table(candidate), max(candidate.batch, 1), candidate.delay_us / 1e6
    free = [0.0] * candidate.instances
    ends: list[float] = []
    while (first := len(ends)) < _REQUESTS:
        begin = max(free[0], arrivals[first])
        full = arrivals[first + most - 1] if first + most <= _REQUESTS else float("inf")
        begin = max(begin, min(full, arrivals[first] + delay))
        rows = min(bisect_right(arrivals, begin, first, min(first + most, _REQUESTS)) - first, most)
        heapq.heapreplace(free, end := begin + seconds[rows])
        ends += [end] * rows
    return np.array(ends) - np.array(arrivals) + costs.outside


def best_rate(candidate: Candidate, costs: Costs, limits_ms: Mapping[str, float]) -> float:
    """Return the highest rate at which the simulated latencies keep limits; 0 if none does.

    Args:
        limits_ms: by "mean", "max" or a percentile such as "p99".
    """
    table = costs.table(candidate)
    high = _HIGHEST * candidate.instances * max(rows / table[rows] for rows in range(1, len(table)))
    low = 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if _kept(latencies(candidate, costs, middle), limits_ms):
            low = middle
        else:
            high = middle
    return low


def _kept(found: Any, limits_ms: Mapping[str, float]) -> bool:
    for name, limit in limits_ms.items():
        if name == "mean":
            value = found.mean()
        else:
            value = found.max() if name == "max" else np.percentile(found, float(name[1:]))
        if value * 1e3 >= limit:
            return False
    return True
