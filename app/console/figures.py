"""What people read, out of counters at two times: rates, percentiles, means. Pure."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from app.core.observability.counters import VersionCounters
from app.core.observability.quantiles import quantile

WINDOW_S: Final = 10.0
"""Percentiles and means are of so many seconds, rates of the last one."""
FIELDS: Final = ("rate", "errors", "p50_ms", "p99_ms", "queue_ms", "compute_ms", "batch", "pending")
"""The figures of a version, as histories keep them."""


class Figures(msgspec.Struct, frozen=True):
    """Requests and failures a second, milliseconds of requests, rows of an execution, and what waits.

    None where nothing was answered.
    """

    rate: float = 0.0
    errors: float = 0.0
    p50_ms: float | None = None
    p99_ms: float | None = None
    queue_ms: float | None = None
    compute_ms: float | None = None
    batch: float | None = None
    pending: int = 0

    def values(self) -> list[float]:
        """Return them in the order of `FIELDS`; NaN for None."""
        found = (getattr(self, field) for field in FIELDS)
        return [float("nan") if value is None else float(value) for value in found]


class Recent:
    """The counters of a version over the last seconds."""

    def __init__(self) -> None:
        self._kept: deque[VersionCounters] = deque(maxlen=32)

    def add(self, now: VersionCounters) -> None:
        """Keep newer counters; those of a version that was loaded anew begin from zero."""
        kept = self._kept
        if kept and (now.ok < kept[-1].ok or now.failed < kept[-1].failed):
            kept.clear()
        kept.append(now)
        while len(kept) > 2 and kept[1].at <= now.at - WINDOW_S:
            kept.popleft()

    def figures(self, bounds_s: Sequence[float]) -> Figures:
        """Return what they say; nothing of the first ones, whose age is not known."""
        if len(self._kept) < 2:
            return Figures(pending=self._kept[-1].pending if self._kept else 0)
        return between(self._kept[0], self._kept[-2], self._kept[-1], bounds_s)

    def answered(self) -> Counter[int]:
        """Return the requests since the last counters but one, by bucket."""
        if len(self._kept) < 2:
            return Counter()
        return _difference(self._kept[-2].buckets, self._kept[-1].buckets)


def between(
    first: VersionCounters, last: VersionCounters, now: VersionCounters, bounds_s: Sequence[float]
) -> Figures:
    """Return rates since `last`, and the rest since `first`."""
    seconds = max(now.at - last.at, 1e-3)
    ok, executions = now.ok - first.ok, now.executions - first.executions
    buckets = _difference(first.buckets, now.buckets)
    return Figures(
        (now.ok + now.failed - last.ok - last.failed) / seconds,
        (now.failed - last.failed) / seconds,
        quantile_ms(bounds_s, buckets, 0.5),
        quantile_ms(bounds_s, buckets, 0.99),
        (now.queue_ns - first.queue_ns) / ok / 1e6 if ok else None,
        (now.compute_ns - first.compute_ns) / ok / 1e6 if ok else None,
        (now.rows - first.rows) / executions if executions > 0 else None,
        now.pending,
    )


def quantile_ms(bounds_s: Sequence[float], counts: Mapping[int, int], share: float) -> float | None:
    """Return the milliseconds that this share of requests stays below, as buckets tell; None of none."""
    found = quantile(counts, share)
    if found is None:
        return None
    below = bounds_s[found.bucket - 1] if found.bucket else 0.0
    bound = bounds_s[min(found.bucket, len(bounds_s) - 1)]
    return (below + (bound - below) * found.part) * 1e3


def _difference(before: Mapping[int, int], after: Mapping[int, int]) -> Counter[int]:
    return Counter(after) - Counter(before)


def as_row(described: dict[str, Any], figures: Figures) -> dict[str, Any]:
    """Return a row as pages read it: what is told of a version, with its figures rounded for people."""
    numbers = {field: getattr(figures, field) for field in FIELDS}
    rounded = {key: round(value, 3) if isinstance(value, float) else value for key, value in numbers.items()}
    return {**described, **rounded}
