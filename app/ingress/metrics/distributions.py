"""Summaries and histograms of `/metrics`, from what the replicas of this node have counted."""

from collections.abc import Iterable, Iterator
from typing import Final

from app.core.latencies import FIRST_RESPONSE as _FIRST
from app.core.metrics_config import SIZE_RATIO
from app.ingress.metrics.labels import Labels
from app.ingress.service.replica_statistics import ReplicaStatistics

Rows = Iterable[tuple[Labels, ReplicaStatistics]]

_SUMMARIES: Final = {
    "request": "Summary of inference request duration in microseconds (includes cached requests)",
    "queue": "Summary of inference queuing duration in microseconds (includes cached requests)",
    "compute_input": "Summary of compute input duration in microseconds (does not include cached requests)",
    "compute_infer": "Summary of compute inference duration in microseconds "
    "(does not include cached requests)",
    "compute_output": "Summary of inference compute output duration in microseconds "
    "(does not include cached requests)",
}
_CACHE_SUMMARIES: Final = {
    "cache_hit": "Summary of cache hit durations per model, in microseconds",
    "cache_miss": "Summary of cache miss durations per model, in microseconds",
}


def quantile(sizes: dict[int, int], share: float) -> float:
    """The duration (us) that this share of the requests stays below; NaN without requests."""
    if not sizes:
        return float("nan")
    rank = share * sum(sizes.values())
    seen = 0
    found = 0
    for size, count in sorted(sizes.items()):
        found = size
        seen += count
        if seen >= rank:
            break
    return 0.0 if found < 0 else float(SIZE_RATIO ** (found - 0.5))


def summary_lines(rows: Rows, quantiles: tuple[float, ...]) -> Iterator[str]:
    """Triton's summaries: those of hits and misses where there is a response cache, instead of requests."""
    rows = list(rows)
    plain = [row for row in rows if not row[1].cached]
    cached = [row for row in rows if row[1].cached]
    for about, text in _SUMMARIES.items():
        shown = plain if about == "request" else rows
        yield from _summary(f"nv_inference_{about}_summary_us", text, shown, about, quantiles)
    for about, text in _CACHE_SUMMARIES.items() if cached else ():
        yield from _summary(f"nv_{about}_summary_per_model", text, cached, about, quantiles)


def _summary(name: str, text: str, rows: Rows, about: str, quantiles: tuple[float, ...]) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} summary"
    for labels, stats in rows:
        count, us, sizes = stats.summaries.get(about, (0, 0, {}))
        for share in quantiles:
            value = quantile(sizes, share)
            yield f'{name}{{{labels},quantile="{share:g}"}} {"NaN" if value != value else round(value)}'
        yield f"{name}_sum{{{labels}}} {us}"
        yield f"{name}_count{{{labels}}} {count}"


def histogram_lines(rows: Rows) -> Iterator[str]:
    """Triton's histogram of decoupled models."""
    yield f"# HELP {_FIRST} Duration from request to first response in milliseconds"
    yield f"# TYPE {_FIRST} histogram"
    for labels, stats in rows:
        if stats.first_response is None:
            continue
        bounds, counts, total = stats.first_response
        seen = 0
        for bound, count in zip((*(f"{bound:g}" for bound in bounds), "+Inf"), counts, strict=True):
            seen += count
            yield f'{_FIRST}_bucket{{{labels},le="{bound}"}} {seen}'
        yield f"{_FIRST}_sum{{{labels}}} {total:g}"
        yield f"{_FIRST}_count{{{labels}}} {seen}"
