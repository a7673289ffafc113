"""Compares the scores of both versions of a rollout that clients have given later. Pure.

Rows of the same minute are compared with one another, weighted by how much they tell: their inputs were the
same kind, whatever the time of day. The evidence is a likelihood ratio of the mean drop of the score: against
a drop of just what is allowed, averaged over all larger ones, it says that the candidate has lost more
(`worse`); averaged over all smaller ones, that it has not (`fine`). Were that wrong, it would ever exceed
1 / alpha with a probability of alpha, however often one looks. (A normal mixture: Robbins 1970; for means
that are normal by their number: Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, "Time-uniform central limit
theory and asymptotic confidence sequences", 2021.) Labels that come late change the rows of an early minute;
what was judged before is judged anew with them.
"""

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from app.core.feedback.figures import Scores
from app.core.rollout.spec import ScoreRule

ACCEPTED: Final = 0.95
"""The confidence that the candidate has lost no more than is allowed, with which it takes over."""
FEW: Final = 100
"""Scores of a version, in minutes in which both have any, without which their means are not normal."""
_SCALE: Final = 1.5
"""By which the mixture is narrowest where some 10 / allowed_drop ** 2 of information decide."""
_ENOUGH: Final = 20.0
"""Information, in units of 1 / allowed_drop ** 2, with which 19 of 20 equal candidates have passed."""
_MOST: Final = 690.0


class Pair(NamedTuple):
    """The scores of both versions in one minute."""

    stable: Scores
    candidate: Scores


class Compared(NamedTuple):
    """The difference of the candidate's mean score.

    Attributes:
        drop: the mean of the minutes; negative if the candidate's is higher.
        information: 1 / the variance of that.
        stable, candidate: all scores of the minutes that were compared.
    """

    drop: float = 0.0
    information: float = 0.0
    stable: Scores = Scores()
    candidate: Scores = Scores()

    @property
    def few(self) -> bool:
        """Whether there are too few to say anything."""
        return min(self.stable.effective, self.candidate.effective) < FEW

    @property
    def error(self) -> float:
        """The standard error of the drop."""
        return 1 / math.sqrt(self.information) if self.information else math.inf


def compare(pairs: Iterable[Pair]) -> Compared:
    """Compare the versions within minutes; one in which a version has no score says nothing."""
    both = [pair for pair in pairs if pair.stable.number and pair.candidate.number]
    if not both:
        return Compared()
    stable, candidate = _sum(pair.stable for pair in both), _sum(pair.candidate for pair in both)
    spreads = _spread(stable), _spread(candidate)
    weight = total = variance = 0.0
    for pair in both:
        sizes = pair.stable.effective, pair.candidate.effective
        own = 1 / (1 / sizes[0] + 1 / sizes[1])
        weight += own
        total += own * (_mean(pair.stable) - _mean(pair.candidate))
        variance += own * own * (spreads[0] / sizes[0] + spreads[1] / sizes[1])
    return Compared(total / weight, weight * weight / variance, stable, candidate)


def _sum(scores: Iterable[Scores]) -> Scores:
    columns = list(zip(*map(msgspec.structs.astuple, scores), strict=True))
    return Scores(*map(sum, columns))


def worse(compared: Compared, allowed: float) -> float:
    """Return the logarithm of the evidence that the candidate has lost more than is allowed."""
    return -math.inf if compared.few else _evidence(compared.drop - allowed, compared.information, allowed)


def fine(compared: Compared, allowed: float) -> float:
    """Return the logarithm of the evidence that it has not."""
    return -math.inf if compared.few else _evidence(allowed - compared.drop, compared.information, allowed)


def holds(rule: ScoreRule, compared: Compared) -> str:
    """Return why the candidate cannot take over yet; "" if it can."""
    if fine(compared, rule.allowed_drop) > -math.log(1 - ACCEPTED):
        return ""
    seen = f"{compared.candidate.number} scored answers of the candidate and {compared.stable.number} of the "
    seen += "stable version at the same time"
    if compared.few:
        return f"score: {seen}, at least {FEW} of each are needed"
    spread, wanted = 1.96 * compared.error, _ENOUGH / rule.allowed_drop**2
    more = compared.candidate.number * max(wanted / compared.information - 1, 0.0)
    text = f"score: by {seen}, it is lower by {compared.drop - spread:.2%} to {compared.drop + spread:.2%}"
    text += f" (95 %), allowed are {rule.allowed_drop:.4g}"
    return f"{text}; about {math.ceil(more):,} more of the candidate tell" if more else text


def alarm(rule: ScoreRule, compared: Compared) -> str:
    """Return the text of an alarm."""
    ours, theirs = _mean(compared.candidate), _mean(compared.stable)
    return (
        f"score: {ours:.4f} of the candidate's {compared.candidate.number} scored answers, {theirs:.4f} of "
        f"the stable version's {compared.stable.number} at the same time; allowed is a drop of "
        f"{rule.allowed_drop:.4g}"
    )


def _evidence(beyond: float, information: float, allowed: float) -> float:
    """Return the logarithm of the evidence that a mean is above 0, which is `beyond` it by so much."""
    narrow = _SCALE / allowed**2
    width = information + narrow
    sum_ = information * beyond
    likely = sum_ * sum_ / (2 * width) + math.log(2) + math.log(narrow / width) / 2
    return min(likely + _log_normal(sum_ / math.sqrt(width)), _MOST)


def _log_normal(z: float) -> float:
    """Return the logarithm of the standard normal distribution's value."""
    if z < -30:  # where `erfc` becomes 0
        return -z * z / 2 - math.log(-z) - math.log(2 * math.pi) / 2
    return math.log(math.erfc(-z / math.sqrt(2)) / 2)


def _mean(scores: Scores) -> float:
    return scores.total / scores.weight if scores.weight else 0.0


def _spread(scores: Scores) -> float:
    """Return the variance of a score, with two right ones and two wrong ones more, so that it is not 0."""
    weight, extra = scores.weight, 4 * scores.weight / max(scores.effective, 1.0)
    mean = (scores.total + extra / 2) / (weight + extra)
    return (scores.squares + extra / 2) / (weight + extra) - mean * mean
