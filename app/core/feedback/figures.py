"""The figures of feedback: means of scores by version, with the intervals in which they lie."""

import math
from typing import Final, TypeVar

import msgspec

from app.core.rollout.report import Estimate
from app.core.rollout.statistics import TWO_SIDED_95, wilson

_T = TypeVar("_T", int, "Scores")


class Scores(msgspec.Struct, frozen=True):
    """Scores of a version, each with the weight of its row.

    Attributes:
        number: of the scores.
        weight: sum of their weights: for how many requests they stand.
        total: sum of the scores by their weights.
        squares: the same of their squares.
        weights: sum of the squares of the weights.
    """

    number: int = 0
    weight: float = 0.0
    total: float = 0.0
    squares: float = 0.0
    weights: float = 0.0

    def __add__(self, other: "Scores") -> "Scores":
        own, others = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return Scores(*(one + another for one, another in zip(own, others, strict=True)))

    def with_score(self, score: float, weight: float = 1.0) -> "Scores":
        """Return them with one more."""
        return self + Scores(1, weight, weight * score, weight * score * score, weight * weight)

    def corrected(self, before: float, score: float, weight: float = 1.0) -> "Scores":
        """Return them with a score instead of another of the same weight."""
        squares = score * score - before * before
        return self + Scores(0, 0.0, weight * (score - before), weight * squares, 0.0)

    @property
    def binary(self) -> bool:
        """Whether each is 0 or 1, so that their mean is an accuracy."""
        return self.total == self.squares

    @property
    def effective(self) -> float:
        """As how many scores of equal weight their mean is as certain (Kish)."""
        return self.weight * self.weight / self.weights if self.weights else 0.0

    @property
    def mean(self) -> Estimate | None:
        """Their mean with its 95 % interval: Wilson's of an accuracy, else Student's; None of nothing."""
        if not self.number:
            return None
        mean, effective = self.total / self.weight, self.effective
        if self.binary:
            return Estimate(mean, *wilson(mean * effective, effective))
        if self.number < 2:
            return Estimate(mean, 0.0, 1.0)
        variance = max(self.squares / self.weight - mean * mean, 0.0)
        half = student(self.number - 1) * math.sqrt(variance / max(effective - 1, 1.0))
        return Estimate(mean, max(mean - half, 0.0), min(mean + half, 1.0))


def student(degrees: int) -> float:
    """Return the 0.975 quantile of Student's distribution, to 0.1 % from 3 degrees of freedom on.

    By the expansion of Cornish and Fisher, see Abramowitz and Stegun 26.7.5.
    """
    if degrees in _STUDENT:
        return _STUDENT[degrees]
    z = TWO_SIDED_95
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / float(degrees**power) for power, term in enumerate(terms, 1))


_STUDENT: Final = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}


class FeedbackFigures(msgspec.Struct, frozen=True):
    """What feedback says of a model.

    Each record that was received is in one of `versions`, `again`, `unknown`, `unusable` and `waiting`.

    Attributes:
        versions: scores of answers by version; of each answer its last one.
        again: records of answers that had one already.
        unknown: records of requests that are not on the tape.
        unusable: records that say nothing of their answer, by the reason.
        waiting: records whose request is not on the tape yet.
    """

    versions: dict[str, Scores] = {}
    again: int = 0
    unknown: int = 0
    unusable: dict[str, int] = {}
    waiting: int = 0

    @property
    def received(self) -> int:
        """All records."""
        scored = sum(scores.number for scores in self.versions.values())
        return scored + self.again + self.unknown + sum(self.unusable.values()) + self.waiting

    def __add__(self, other: "FeedbackFigures") -> "FeedbackFigures":
        return FeedbackFigures(
            _joined(self.versions, other.versions, Scores()),
            self.again + other.again,
            self.unknown + other.unknown,
            _joined(self.unusable, other.unusable, 0),
            self.waiting + other.waiting,
        )


def _joined(one: dict[str, _T], other: dict[str, _T], nothing: _T) -> dict[str, _T]:
    return {key: one.get(key, nothing) + other.get(key, nothing) for key in sorted(one.keys() | other.keys())}
