"""Histograms of request durations that are always kept, for percentiles over replicas and nodes (`/metrics`).

A request pays for two appends to a list. Buckets are found for many requests at a time, when there are enough
of them or somebody asks: 60 ns a duration instead of 200.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from app.core.observability.latencies import Histogram

BOUNDS_S: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""The same everywhere and always: histograms of other bounds could not be added."""
MANY: Final = 1024
"""Numbers that are sorted at a time, two for each request; that takes 30 us."""
_BOUNDS_NS: Final = np.array([round(bound * 1e9) for bound in BOUNDS_S])


class Buckets:
    """Durations counted by upper bound, and their sum."""

    def __init__(self) -> None:
        self.counts: npt.NDArray[np.int64] = np.zeros(len(BOUNDS_S) + 1, np.int64)
        self.ns = 0

    def add(self, durations: npt.NDArray[np.int64]) -> int:
        """Count durations in nanoseconds; return their sum."""
        self.counts += np.bincount(np.searchsorted(_BOUNDS_NS, durations), minlength=len(self.counts))
        ns = int(durations.sum())
        self.ns += ns
        return ns

    def histogram(self) -> Histogram:
        """Return what was counted, in seconds."""
        return Histogram(BOUNDS_S, self.counts.tolist(), self.ns / 1e9)


class RequestDurations:
    """How long requests took: altogether, in the queue, and after that.

    Attributes:
        new: nanoseconds altogether and in the queue, in turn, of requests not sorted yet; callers extend this
            list, which is never replaced by another.
    """

    def __init__(self) -> None:
        self.new: list[int] = []
        self._buckets = {kind: Buckets() for kind in ("request", "queue", "compute")}

    def sort(self, firsts: Histogram | None = None) -> tuple[int, int, int]:
        """Sort what is new into buckets; return requests, nanoseconds altogether and in the queue.

        Where the first response is the only one, `firsts` counts the same durations in milliseconds.
        """
        total, queue = np.array(self.new, np.int64).reshape(-1, 2).T
        self.new.clear()
        if firsts is not None:
            firsts.observe_all(total / 1e6)
        buckets = self._buckets
        buckets["compute"].add(total - queue)
        return len(total), buckets["request"].add(total), buckets["queue"].add(queue)

    def histograms(self) -> dict[str, Histogram]:
        """Return the sorted durations by kind; nothing without any."""
        if not self._buckets["request"].counts.any():
            return {}
        return {kind: buckets.histogram() for kind, buckets in self._buckets.items()}
