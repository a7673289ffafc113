"""Shares and quantiles of a rollout's outcomes, with the intervals in which they lie."""

import math
from collections.abc import Mapping
from typing import Final

from app.core.observability.quantiles import quantile
from app.core.rollout.outcomes import LATENCY_RATIO

TWO_SIDED_95: Final = 1.96
ONE_SIDED_95: Final = 1.645
"""Standard normal quantiles: an interval, or one bound, that holds with 95 %."""


def wilson(count: float, total: float, z: float = TWO_SIDED_95) -> tuple[float, float]:
    """Return the bounds of a share of which `count` of `total` were seen: Wilson's score interval."""
    if not total:
        return 0.0, 1.0
    share, spread = count / total, z * z / total
    centre = share + spread / 2
    half = math.sqrt(share * (1 - share) * spread + spread * spread / 4)
    return max((centre - half) / (1 + spread), 0.0), min((centre + half) / (1 + spread), 1.0)


def position(microseconds: float) -> float:
    """Return where a duration lies among the buckets, whose bounds are the whole numbers."""
    return math.log(microseconds) / math.log(LATENCY_RATIO)


def microseconds(position: float) -> float:
    """Return the duration at a position among the buckets."""
    return float(LATENCY_RATIO**position)


def quantile_position(latencies: Mapping[int, int], share: float) -> float:
    """Return the position that this share of the durations does not exceed; they must be some.

    Within a bucket the logarithms of the durations are taken as evenly spread.
    """
    found = quantile(latencies, share)
    if found is None:
        raise ValueError("no durations were counted")
    return found.bucket - 1 + found.part


def count_above(latencies: Mapping[int, int], position: float) -> float:
    """Return how many durations lie above a position, with the part of its bucket that does."""
    return sum(count * min(max(bucket - position, 0.0), 1.0) for bucket, count in latencies.items())


def quantile_interval(latencies: Mapping[int, int], share: float) -> tuple[float, float, float]:
    """Return a quantile of the durations and its 95 % interval, from order statistics, in microseconds."""
    total = sum(latencies.values())
    half = TWO_SIDED_95 * math.sqrt(share * (1 - share) / total)
    shares = (share, max(share - half, 0.0), min(share + half, 1.0))
    estimate, low, high = (microseconds(quantile_position(latencies, each)) for each in shares)
    return estimate, low, high
