"""Quantiles of values that are counted by bucket, in whatever unit the buckets are."""

from collections.abc import Mapping
from typing import NamedTuple


class Place(NamedTuple):
    """A bucket, and the part of its values, 0 to 1, that lie below."""

    bucket: int
    part: float


def quantile(counts: Mapping[int, int], share: float) -> Place | None:
    """Return where the share of the values that are counted ends, 0 to 1; None of no values.

    Whoever knows the bounds of the bucket tells what lies at this part of it.
    """
    left = share * sum(counts.values())
    found = None
    for bucket, count in sorted(counts.items()):
        if count > 0:
            found = Place(bucket, min(left / count, 1.0))
            if left <= count:
                return found
            left -= count
    return found  # the last one, if rounding has left something
