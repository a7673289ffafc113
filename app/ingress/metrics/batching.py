"""Metric families that explain what batchers do; Triton has none of them.

They appear with the first batch: a server of models that were never asked shows Triton's families only.
"""

from collections.abc import Sequence
from itertools import accumulate

from app.ingress.metrics.distributions import Rows
from app.ingress.metrics.labels import Labels
from app.ingress.service.replica_statistics import ReplicaStatistics

_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def batching_lines(rows: Rows) -> list[str]:
    """The lines of `/metrics` on batches: their sizes, why they were released, the age of the queue.

    Args:
        rows: the labels of a model version and its counters.
    """
    executed = [(labels, stats) for labels, stats in rows if stats.releases]
    if not executed:
        return []
    name = "nereid_batch_size"
    lines = _header(name, "histogram", "Batch items of a model execution")
    for labels, stats in executed:
        lines += _sizes(name, labels, stats)
    name = "nereid_batch_release"
    lines += _header(name, "counter", "Batches by why the scheduler released them")
    for labels, stats in executed:
        lines += [f"{name}{{{labels.also('reason', why)}}} {n}" for why, n in sorted(stats.releases.items())]
    name = "nereid_queue_age_us"
    lines += _header(name, "gauge", "Age of the oldest queued request in microseconds")
    lines += [f"{name}{{{labels}}} {stats.queue_age_ns // 1000}" for labels, stats in executed]
    return lines


def _sizes(name: str, labels: Labels, stats: ReplicaStatistics) -> list[str]:
    batches = stats.statistics.batch_stats
    counts = [(batch.batch_size, batch.compute_infer.count) for batch in batches]
    total = sum(count for _, count in counts)
    rows = sum(size * count for size, count in counts)
    lines = [
        f'{name}_bucket{{{labels},le="{bound}"}} {count}'
        for bound, count in zip(_SIZES, accumulate(_between(counts)), strict=True)
    ]
    lines.append(f'{name}_bucket{{{labels},le="+Inf"}} {total}')
    return [*lines, f"{name}_sum{{{labels}}} {rows}", f"{name}_count{{{labels}}} {total}"]


def _between(counts: Sequence[tuple[int, int]]) -> list[int]:
    """Executions in each bucket alone."""
    lower = (0, *_SIZES)
    return [
        sum(count for size, count in counts if above < size <= bound)
        for above, bound in zip(lower, _SIZES, strict=False)
    ]


def _header(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
