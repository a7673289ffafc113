"""Histograms of request durations that are always kept, for percentiles over replicas and nodes.

Whole requests are counted in buckets 10 % wide, from which people are told percentiles; `/metrics` has their
sums between its own, wider bounds. A request pays for two appends to a list. Buckets are found for many
requests at a time, when there are enough of them or somebody asks: some 50 ns a duration instead of 200.
"""

from itertools import pairwise
from math import ceil, log
from typing import Final

import numpy as np
import numpy.typing as npt

from app.core.observability.latencies import Histogram

BOUNDS_S: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""The same everywhere and always: histograms of other bounds could not be added."""
_LEAST_S: Final = 10e-6
_RATIO: Final = 1.1


def _fine() -> tuple[float, ...]:
    found = [_LEAST_S]
    for low, high in pairwise((_LEAST_S, *BOUNDS_S)):
        parts = ceil(log(high / low) / log(_RATIO))
        found += [round(low * (high / low) ** (part / parts), 7) for part in range(1, parts)] + [high]
    return tuple(found)


FINE_S: Final = _fine()
"""Bounds that are 10 % apart, with those of `BOUNDS_S` among them: a percentile between two is off by 5 %."""
MANY: Final = 1024
"""Numbers that are sorted at a time, two for each request; that takes 30 us."""
_FIRST_FINE: Final = [0, *(FINE_S.index(bound) + 1 for bound in BOUNDS_S)]
"""The first fine bucket of each wide one."""


class Buckets:
    """Durations counted by upper bound in seconds, and their sum."""

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self._bounds_ns = np.array([round(bound * 1e9) for bound in bounds_s])
        self.counts: npt.NDArray[np.int64] = np.zeros(len(bounds_s) + 1, np.int64)
        self.ns = 0

    def add(self, durations: npt.NDArray[np.int64]) -> int:
        """Count durations in nanoseconds; return their sum."""
        self.counts += np.bincount(np.searchsorted(self._bounds_ns, durations), minlength=len(self.counts))
        ns = int(durations.sum())
        self.ns += ns
        return ns


class RequestDurations:
    """How long requests took: altogether, in the queue, and after that.

    Attributes:
        new: nanoseconds altogether and in the queue, in turn, of requests not sorted yet; callers extend this
            list, which is never replaced by another.
    """

    def __init__(self) -> None:
        self.new: list[int] = []
        self._request, self._queue, self._compute = Buckets(FINE_S), Buckets(BOUNDS_S), Buckets(BOUNDS_S)

    def sort(self, firsts: Histogram | None = None) -> tuple[int, int, int]:
        """Sort what is new into buckets; return requests, nanoseconds altogether and in the queue.

        Where the first response is the only one, `firsts` counts the same durations in milliseconds.
        """
        total, queue = np.array(self.new, np.int64).reshape(-1, 2).T
        self.new.clear()
        if firsts is not None:
            firsts.observe_all(total / 1e6)
        self._compute.add(total - queue)
        return len(total), self._request.add(total), self._queue.add(queue)

    def histograms(self) -> dict[str, Histogram]:
        """Return the sorted durations by kind; nothing without any."""
        request, queue, compute = self._request, self._queue, self._compute
        if not request.counts.any():
            return {}
        wide = np.add.reduceat(request.counts, _FIRST_FINE)
        read = (
            ("request", request, wide),
            ("queue", queue, queue.counts),
            ("compute", compute, compute.counts),
        )
        return {kind: Histogram(BOUNDS_S, counts.tolist(), all_.ns / 1e9) for kind, all_, counts in read}

    def fine(self) -> dict[int, int]:
        """Return the sorted whole requests by the bucket of `FINE_S`; len(FINE_S) is of those above all."""
        counts = self._request.counts
        return {int(place): int(counts[place]) for place in counts.nonzero()[0]}
