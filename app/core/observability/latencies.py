"""Distributions of durations in one process, for summaries and histograms of `/metrics`.

A summary is kept as counts by logarithmic size (2% wide), which add up over replicas; quantiles are read from
those of the last one to two minutes. Nothing of this runs unless `--metrics-config` asks for it;
`durations.py` has what is always kept.
"""

import math
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import model_config_pb2 as mc

from app.core.observability.quantiles import quantile

SIZE_RATIO: Final = 1.02
"""The ratio of the bounds of a size: a quantile is off by half of it."""
FIRST_RESPONSE: Final = "nv_inference_first_response_histogram_ms"
_BOUNDS_MS: Final = (100.0, 500.0, 2000.0, 5000.0)
_EPOCH_S: Final = 60.0
_LOG: Final = math.log(SIZE_RATIO)


class Summary(msgspec.Struct):
    """Requests and microseconds since the start, and recent requests counted by logarithmic size.

    Size n is of durations up to `SIZE_RATIO ** n` microseconds, -1 of zero.
    """

    count: int = 0
    us: int = 0
    sizes: dict[int, int] = {}

    def __add__(self, other: "Summary") -> "Summary":
        sizes = dict(Counter(self.sizes) + Counter(other.sizes))
        return Summary(self.count + other.count, self.us + other.us, sizes)

    def quantile(self, share: float) -> float:
        """Return the duration (us) that this share of the requests stays below; NaN without requests."""
        found = quantile(self.sizes, share)
        if found is None:
            return math.nan
        return 0.0 if found.bucket < 0 else float(SIZE_RATIO ** (found.bucket - 0.5))


class Histogram(msgspec.Struct):
    """Observations counted by upper bound; the last of `counts` is of those above all bounds."""

    bounds: tuple[float, ...]
    counts: list[int]
    total: float = 0

    def observe(self, value: float) -> None:
        """Count a value in its bucket."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_all(self, values: npt.NDArray[np.float64]) -> None:
        """Count many values in their buckets."""
        found = np.bincount(np.searchsorted(self.bounds, values), minlength=len(self.counts))
        self.counts = [count + new for count, new in zip(self.counts, found.tolist(), strict=True)]
        self.total += float(values.sum())

    def __add__(self, other: "Histogram") -> "Histogram":
        counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        return Histogram(self.bounds, counts, self.total + other.total)


class SummaryRecorder:
    """Records durations in microseconds; keeps some 2,000 counts at most."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._epoch_began = clock()
        self._recent: Counter[int] = Counter()
        self._previous: Counter[int] = Counter()
        self._count = 0
        self._us = 0

    def record(self, ns: int, times: int = 1) -> None:
        """Record a duration that `times` requests had."""
        self._rotate()
        us = max(0, ns // 1000)
        self._count += times
        self._us += us * times
        self._recent[math.ceil(math.log(us) / _LOG) if us else -1] += times

    def report(self) -> Summary:
        """Return count and sum since the start, and recent counts by size."""
        self._rotate()
        return Summary(self._count, self._us, dict(self._recent + self._previous))

    def _rotate(self) -> None:
        age = self._clock() - self._epoch_began
        if age >= _EPOCH_S:
            self._previous = self._recent if age < 2 * _EPOCH_S else Counter()
            self._recent = Counter()
            self._epoch_began = self._clock()


class Latencies:
    """The summaries of one process, by the duration that Triton names them after."""

    def __init__(self) -> None:
        self.request = SummaryRecorder()
        self.queue = SummaryRecorder()
        self.compute_input = SummaryRecorder()
        self.compute_infer = SummaryRecorder()
        self.compute_output = SummaryRecorder()
        self.cache_hit = SummaryRecorder()
        self.cache_miss = SummaryRecorder()

    def report(self) -> dict[str, Summary]:
        """Return the summaries by name; those without a request are left out."""
        found = ((name, recorder.report()) for name, recorder in vars(self).items())
        return {name: summary for name, summary in found if summary.count}


def unknown_families(config: mc.ModelConfig) -> list[str]:
    """Return the names in `model_metrics` of which nothing can be customized."""
    named = [control.metric_identifier.family for control in config.model_metrics.metric_control]
    return [family for family in named if family != FIRST_RESPONSE]


def first_response_histogram(config: mc.ModelConfig) -> Histogram:
    """Make the histogram of a model's first responses; `model_metrics` may give its bounds."""
    bounds = _BOUNDS_MS
    for control in config.model_metrics.metric_control:
        if control.metric_identifier.family == FIRST_RESPONSE:
            bounds = tuple(control.histogram_options.buckets)
            break
    return Histogram(bounds, [0] * (len(bounds) + 1))
