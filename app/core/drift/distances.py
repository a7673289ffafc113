"""How far the rows of now are from the reference, in the usual measures, on the reference's cells. Pure.

They are shown, and judge nothing: what a limit of any of them means depends on the number of rows.
"""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final

import msgspec

from app.core.drift.reference import Feature

_LEAST: Final = 1e-4
"""The share that an empty cell is taken to have, where its logarithm is needed."""


class Distances(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of one feature.

    Attributes:
        psi: the population stability index.
        js: the Jensen-Shannon distance, 0 to 1.
        wasserstein: in units of the reference's deviation, on straight lines between the edges of bins, which
            makes more of it where tails are long; None for categories.
        ks: the Kolmogorov-Smirnov statistic at the edges of bins; None for categories.
    """

    psi: float
    js: float
    wasserstein: float | None = None
    ks: float | None = None


def distances(feature: Feature, counts: Sequence[int]) -> Distances:
    """Return the distances of these rows, by cell, from the reference; there must be some."""
    ours, theirs = _shares(counts), _shares(feature.counts)
    psi, js = stability_index(theirs, ours), jensen_shannon(theirs, ours)
    if feature.is_category:
        return Distances(psi, js)
    # Without NaN; what is below the bins lies at the first edge, what is above at the last.
    known = _shares(counts[1:]), _shares(feature.counts[1:])
    gaps = [a - b for a, b in zip(*map(_at_edges, known), strict=True)]
    ks = max(map(abs, gaps))
    edges = feature.edges
    area = sum(
        _between(*pair) * (high - low)
        for pair, (low, high) in zip(pairwise(gaps), pairwise(edges), strict=True)
    )
    return Distances(psi, js, area / feature.deviation if feature.deviation > 0 else None, ks)


def stability_index(before: Sequence[float], now: Sequence[float]) -> float:
    """Return the population stability index of two distributions."""
    pairs = [(max(a, _LEAST), max(b, _LEAST)) for a, b in zip(before, now, strict=True) if a or b]
    return sum((b - a) * math.log(b / a) for a, b in pairs)


def jensen_shannon(before: Sequence[float], now: Sequence[float]) -> float:
    """Return the Jensen-Shannon distance of two distributions, by the logarithm of base 2."""
    total = 0.0
    for a, b in zip(before, now, strict=True):
        total += sum(share * math.log2(2 * share / (a + b)) for share in (a, b) if share > 0) / 2
    return math.sqrt(max(total, 0.0))


def _shares(counts: Sequence[int]) -> list[float]:
    total = sum(counts)
    return [count / total for count in counts] if total else [0.0] * len(counts)


def _at_edges(shares: Sequence[float]) -> list[float]:
    """Return the share below each edge, of cells from far below on."""
    return list(accumulate(shares))[1:-2]


def _between(one: float, other: float) -> float:
    """Return the mean of the absolute value on a line between two values."""
    if one * other >= 0:
        return (abs(one) + abs(other)) / 2
    return (one * one + other * other) / (2 * (abs(one) + abs(other)))
