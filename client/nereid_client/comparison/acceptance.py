"""Says whether so many good rows show that a candidate is right, which is more than that nothing is wrong.

An alarm needs evidence against a candidate, and no rows at all give none. Acceptance needs evidence for it:
an upper bound of the share of bad rows, from Clopper and Pearson (1934), which holds for any number of rows.
"""

import math
from typing import Final

import msgspec
import numpy as np

_STEPS: Final = 60
MOST_ROWS: Final = 1 << 40
"""Rows from which a number of them says nothing any more."""


class Acceptance(msgspec.Struct, frozen=True):
    """What `total` rows of which `bad` were bad say of the share that is bad.

    Attributes:
        bad, total: rows.
        allowed: the share that may be bad.
        confidence: with which the bound holds.
        bound: the share that is not exceeded.
        missing: how many more good rows would show that no more than `allowed` are bad; 0 if these do.
    """

    bad: int
    total: int
    allowed: float
    confidence: float
    bound: float
    missing: int

    @property
    def accepted(self) -> bool:
        """Whether no more rows are bad than are allowed."""
        return not self.missing

    def __str__(self) -> str:
        seen = f"{self.bad:,} of {self.total:,} rows"
        sure = f"at most {self.bound:.2%} with a confidence of {self.confidence:.4g}"
        text = f"{seen}, {sure}; allowed are {self.allowed * 100:.4g} %"
        if self.accepted:
            return text
        more = f"{self.missing:,} more rows" if self.missing + self.total < MOST_ROWS else "no number of rows"
        return f"inconclusive: {text}, which {more} without one would show"


def accept(bad: int, total: int, allowed: float, confidence: float = 0.99) -> Acceptance:
    """Say what rows show; `allowed` is a share below 1, `confidence` one between 0 and 1."""
    needed = rows_needed(bad, allowed, confidence)
    bound = upper_bound(bad, total, confidence)
    return Acceptance(bad, total, allowed, confidence, bound, max(needed - total, 0))


def upper_bound(bad: int, total: int, confidence: float) -> float:
    """Return the largest share of bad rows of which `bad` or fewer of `total` are not too unlikely."""
    if bad >= total:
        return 1.0
    low, high = bad / total, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if at_most(bad, total, middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def rows_needed(bad: int, allowed: float, confidence: float) -> int:
    """Return the fewest rows which, with `bad` of them bad, show that no more than `allowed` are."""
    if allowed <= 0:
        return MOST_ROWS
    low, high = bad, max(2 * bad, 64)
    while high < MOST_ROWS and at_most(bad, high, allowed) > 1 - confidence:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if at_most(bad, middle, allowed) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def at_most(bad: int, total: int, share: float) -> float:
    """Return the probability that `bad` or fewer of `total` rows are bad, were this share of all bad."""
    if bad >= total or share <= 0:
        return 1.0
    if share >= 1:
        return 0.0
    # From `bad` down to where there is nothing left to add: 40 deviations below the most likely number.
    mean = share * total
    terms = min(bad, int(max(bad - mean, 0.0) + 40 * math.sqrt(mean * (1 - share))) + 50)
    number = bad - np.arange(terms, dtype=np.float64)
    ratios = np.log(number) - np.log(total - number + 1) + math.log1p(-share) - math.log(share)
    logs = np.concatenate(([0.0], np.cumsum(ratios)))
    first = math.lgamma(total + 1) - math.lgamma(bad + 1) - math.lgamma(total - bad + 1)
    first += bad * math.log(share) + (total - bad) * math.log1p(-share)
    largest = float(logs.max())
    return min(math.exp(first + largest) * float(np.exp(logs - largest).sum()), 1.0)
