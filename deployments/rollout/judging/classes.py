"""Compares the mix of classes that both versions of a rollout answer with, within intervals. Pure.

Were the versions alike, an answer of a class would be the candidate's as often as any answer of the interval
is, whatever the clients ask for and whenever: see `odds.py`, whose evidence each class has. The first class
that is seen has half of the say, the next a sixth, and so on by 1 / (n (n + 1)): the sum of all never exceeds
1,000 but once in 1,000 rollouts of versions that are alike.
"""

import math
from collections import Counter
from typing import Final, NamedTuple

import msgspec

from app.core.rollout.outcomes import Outcomes
from deployments.rollout.judging.odds import Odds, Shares

_MOST_CLASSES: Final = 64
"""Classes that are compared, the first that are seen."""


class Mix(msgspec.Struct, frozen=True):
    """Answers of both versions by class, in an interval that is not over or in all."""

    stable: dict[str, int] = {}
    candidate: dict[str, int] = {}

    def add(self, outcomes: Outcomes) -> "Mix":
        """Return the interval with what one report says."""
        return self.and_also(Mix(outcomes.stable.classes, outcomes.candidate.classes))

    def and_also(self, other: "Mix") -> "Mix":
        """Return both as one."""
        return Mix(
            dict(Counter(self.stable) + Counter(other.stable)),
            dict(Counter(self.candidate) + Counter(other.candidate)),
        )

    @property
    def over(self) -> bool:
        """Whether it can be compared."""
        return bool(self.stable and self.candidate)

    def shares(self, name: str) -> Shares:
        """Return the answers of a class, of both versions."""
        totals = sum(self.candidate.values()), sum(self.stable.values())
        return Shares(self.candidate.get(name, 0), totals[0], self.stable.get(name, 0), totals[1])


class Surplus(NamedTuple):
    """The class that speaks most for another mix: how often both versions have it, and the evidence."""

    name: str
    shares: Shares
    log_evidence: float


class ClassOdds(msgspec.Struct, frozen=True):
    """Evidence that the candidate answers with a class more often.

    Attributes:
        odds: by class, in the order in which they were first seen.
        seen: the intervals together.
    """

    odds: dict[str, Odds] = {}
    seen: Mix = Mix()

    def after(self, mix: Mix) -> "ClassOdds":
        """Return the evidence with one more interval."""
        if not mix.over:
            return self
        odds = dict(self.odds)
        for name in sorted({*mix.stable, *mix.candidate}):
            if name in odds or len(odds) < _MOST_CLASSES:
                odds[name] = odds.get(name, Odds()).after(mix.shares(name))
        for name in odds.keys() - mix.stable.keys() - mix.candidate.keys():
            odds[name] = odds[name].after(mix.shares(name))
        return ClassOdds(odds, self.seen.and_also(mix))

    @property
    def surpluses(self) -> list[Surplus]:
        """The surplus of each class."""
        return [
            Surplus(name, self.seen.shares(name), odds.log_evidence - math.log(number * (number + 1)))
            for number, (name, odds) in enumerate(self.odds.items(), 1)
        ]
