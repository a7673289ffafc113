"""Tails of the distributions by which counts are judged: non-central chi-squared, and Poisson. Pure.

Of our own, because scipy is 140 MB; `tests/unit/app/core/drift/test_chi_squared.py` has its values.
"""

import math
from typing import Final

_SPREADS: Final = 12.0
"""Standard deviations of the mixture's Poisson distribution that are summed; beyond is less than 1e-30."""


def noncentral_tail(x: float, degrees: int, noncentrality: float) -> float:
    """Return the probability of more than `x` by the non-central chi-squared distribution.

    It is a mixture of central ones, with two more degrees of freedom each, whose weights are those of a
    Poisson distribution. Central tails follow from each other by one term.

    Args:
        x: at least 0.
        degrees: of freedom, at least 1.
        noncentrality: the sum of the squared means, at least 0.
    """
    half, mean = x / 2, noncentrality / 2
    if half <= 0:
        return 1.0
    last = math.ceil(mean + _SPREADS * math.sqrt(mean) + 4 * _SPREADS)
    at = 1.0 if degrees % 2 == 0 else 0.5
    tail = math.exp(-half) if degrees % 2 == 0 else math.erfc(math.sqrt(half))
    total = 0.0
    for number in range(last):
        while at < degrees / 2 + number:
            tail += _term(half, at)
            at += 1
        total += _term(mean, number) * tail
    return min(total, 1.0)


def poisson_tail(count: int, mean: float) -> float:
    """Return the probability of `count` or more by a Poisson distribution; 1 if that is less than expected.

    Where there are more than expected, those of a binomial distribution with this mean are less probable.
    """
    if count <= mean + 1:
        return 1.0
    total, number = 0.0, count
    while (term := _term(mean, number)) > total * 1e-17:
        total += term
        number += 1
    return min(total, 1.0)


def _term(mean: float, number: float) -> float:
    """Return `mean ** number * exp(-mean) / number!`."""
    if mean <= 0:
        return 1.0 if number == 0 else 0.0
    return math.exp(number * math.log(mean) - mean - math.lgamma(number + 1))
