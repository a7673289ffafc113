"""Distributions of durations in one process, for summaries and histograms of `/metrics`.

A summary is kept as counts by logarithmic size (2% wide), which add up over replicas; quantiles are read from
those of the last one to two minutes. Nothing of this runs unless `--metrics-config` asks for it.
"""

import math
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from tritonclient.grpc import model_config_pb2 as mc

from app.core.metrics_config import SIZE_RATIO

_EPOCH_S: Final = 60.0
_LOG: Final = math.log(SIZE_RATIO)


class Summary:
    """Durations in microseconds; holds some 2,000 counts at most."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun = clock()
        self._recent: Counter[int] = Counter()
        self._before: Counter[int] = Counter()
        self.count = 0
        self.sum = 0

    def add(self, ns: int, times: int = 1) -> None:
        """Record a duration that so many requests had."""
        self._turn()
        us = max(0, ns // 1000)
        self.count += times
        self.sum += us * times
        self._recent[math.ceil(math.log(us) / _LOG) if us else -1] += times

    def message(self) -> tuple[int, int, dict[int, int]]:
        """Count and sum since the start, and recent counts by size."""
        self._turn()
        return self.count, self.sum, dict(self._recent + self._before)

    def _turn(self) -> None:
        age = self._clock() - self._begun
        if age >= _EPOCH_S:
            self._before = self._recent if age < 2 * _EPOCH_S else Counter()
            self._recent = Counter()
            self._begun = self._clock()


class Histogram:
    """Durations in milliseconds, counted by the upper bounds of the configuration."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, ns: int) -> None:
        """Record a duration."""
        ms = ns / 1e6
        self._counts[bisect_left(self.bounds, ms)] += 1
        self._sum += ms

    def message(self) -> tuple[tuple[float, ...], list[int], float]:
        """Bounds, counts of each and of what is above, sum."""
        return self.bounds, list(self._counts), self._sum


FIRST_RESPONSE: Final = "nv_inference_first_response_histogram_ms"
_BOUNDS_MS: Final = (100.0, 500.0, 2000.0, 5000.0)


def first_responses(config: mc.ModelConfig) -> Histogram:
    """The histogram of a decoupled model's first responses; `model_metrics` may give its bounds."""
    for control in config.model_metrics.metric_control:
        if control.metric_identifier.family == FIRST_RESPONSE:
            return Histogram(tuple(control.histogram_options.buckets))
    return Histogram(_BOUNDS_MS)


class Latencies:
    """The summaries of one process, by Triton's names of what they are about.

    As in Triton, a model with a response cache has summaries of hits and misses, and none of requests.
    """

    def __init__(self) -> None:
        self.request = Summary()
        self.queue = Summary()
        self.compute_input = Summary()
        self.compute_infer = Summary()
        self.compute_output = Summary()
        self.cache_hit = Summary()
        self.cache_miss = Summary()

    def message(self, cached: bool) -> dict[str, Any]:
        """Summaries by name; `cached` tells whether the model has a response cache."""
        absent = ("request",) if cached else ("cache_hit", "cache_miss")
        return {name: each.message() for name, each in vars(self).items() if name not in absent}


def distributions(latencies: Latencies | None, first: Histogram | None, cached: bool) -> dict[str, Any]:
    """What a process tells of a model, as the fields of `ReplicaStatistics`.

    Args:
        latencies: None where summaries are not wanted.
        first: the histogram of first responses; likewise.
        cached: the model has a response cache.
    """
    found: dict[str, Any] = {"cached": cached}
    if latencies is not None:
        found["summaries"] = latencies.message(cached)
    if first is not None:
        found["first_response"] = first.message()
    return found
