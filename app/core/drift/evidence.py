"""Judges whether rows still look like the reference, however often one looks. Pure.

Each window of rows gives each test a p-value. It is made an e-value, which is 1 or less on average while
nothing has changed; the evidence is the product of those since it was last below 1. Then on average
1 / alpha windows or more pass before a false alarm: an e-detector (Shin, Ramdas, Rinaldo, "E-detectors: a
nonparametric framework for sequential change detection", 2022). It assumes rows that do not depend on each
other.

Two tests of each feature: of the shares of its frequent cells, by chi-squared, and of its strays (NaN, far
outside the range, new categories), which are too rare for that. The reference is a sample too, and a change
that matters is larger than a small one: so the chi-squared distribution of "nothing has changed" is a
non-central one.
"""

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from app.core.drift.cells import strays
from app.core.drift.chi_squared import noncentral_tail, poisson_tail
from app.core.drift.reference import Feature

WINDOW: Final = 250
"""Rows from which a window is tested."""
TOLERANCE: Final = 0.005
ALPHA: Final = 0.001
_MOST_E: Final = 1e12
_MOST_LOG: Final = math.log(1e9)
"""The evidence does not rise above, so that an alarm ends some time after the change has."""
_FREQUENT: Final = 1 / 32
"""Share of the reference from which a cell is tested by itself."""
_REFERENCE: Final = 1.5
"""How much farther than on average a reference may be from what it is a sample of."""


class Evidence(msgspec.Struct, frozen=True):
    """The logarithms of the evidence of a feature's two tests, and whether that is an alarm."""

    cells: float = 0.0
    strays: float = 0.0
    alarmed: bool = False

    @property
    def log(self) -> float:
        """The greater of the two."""
        return max(self.cells, self.strays)


def after(
    evidence: Evidence, feature: Feature, counts: Sequence[int], features: int, rules: tuple[float, float]
) -> Evidence:
    """Return the evidence with one more window.

    Args:
        evidence: so far.
        feature: the feature, with the reference's counts.
        counts: rows of the window by cell.
        features: how many are watched, each of which may give a false alarm.
        rules: tolerance, in mean squared relative differences of shares, and alpha.
    """
    tolerance, alpha = rules
    cells = _grown(evidence.cells, cells_probability(feature, counts, tolerance))
    rare = _grown(evidence.strays, strays_probability(feature, counts, tolerance))
    found = Evidence(cells, rare, evidence.alarmed)
    level = math.log(2 * features / alpha)
    # One that is on stays on until nothing speaks for it: it would come and go at the limit.
    return msgspec.structs.replace(found, alarmed=found.log > (0.0 if evidence.alarmed else level))


def normalised(evidence: Evidence, features: int) -> float:
    """Return the evidence as clients see it: an alarm from 1 / alpha on, however many features there are."""
    return math.exp(evidence.log) / (2 * features)


def _grown(log: float, probability: float) -> float:
    gain = min(0.5 / math.sqrt(probability), _MOST_E) if probability > 0 else _MOST_E
    return min(max(log, 0.0) + math.log(gain), _MOST_LOG)


def cells_probability(feature: Feature, counts: Sequence[int], tolerance: float) -> float:
    """Return how probable shares are that differ as much, or more."""
    groups = _groups(feature)
    degrees = len(groups) - 1
    rows, before = sum(counts[cell] for group in groups for cell in group), sum(feature.counts)
    if degrees < 1 or not rows:
        return 1.0
    known = sum(feature.counts[cell] for group in groups for cell in group)
    distance = 0.0
    for group in groups:
        share = sum(feature.counts[cell] for cell in group) / known
        distance += (sum(counts[cell] for cell in group) / rows - share) ** 2 / share
    allowed = rows * (tolerance + _REFERENCE * degrees / before)
    return noncentral_tail(rows * distance, degrees, allowed)


def strays_probability(feature: Feature, counts: Sequence[int], tolerance: float) -> float:
    """Return how probable as many strays are, or more."""
    before, rows = sum(feature.counts), sum(counts)
    known = sum(strays(feature, feature.counts).values())
    share = (known + 2 * math.sqrt(known + 1) + 1) / before + tolerance
    return poisson_tail(sum(strays(feature, counts).values()), rows * min(share, 1.0))


def _groups(feature: Feature) -> list[list[int]]:
    """Return the cells of a feature in groups that are frequent enough; strays are in none."""
    if feature.is_category:
        cells = list(range(len(feature.counts) - 1))
    else:
        cells = list(range(2, len(feature.counts) - 1))
    least = _FREQUENT * sum(feature.counts)
    groups, group = list[list[int]](), list[int]()
    for cell in cells:
        group.append(cell)
        if sum(feature.counts[each] for each in group) >= least:
            groups.append(group)
            group = []
    if group and groups:
        groups[-1] += group
    return groups
