"""Compares how often both versions of a rollout fail or refuse, within intervals. Pure.

Were the versions alike, a bad request of an interval would be the candidate's as often as any request is,
whatever makes them bad and whenever: it is not to blame for bad input, or a dependency that fails. The
evidence is the likelihood of odds that are several times as high, averaged over these odds: were they not
higher, it would ever exceed 1,000 once in 1,000 rollouts, however often one looks. (Of the requests of an
interval the bad ones are drawn without replacement, which makes extremes no more likely: Hoeffding,
"Probability inequalities for sums of bounded random variables", 1963.)
"""

import math
from typing import Final, NamedTuple

import msgspec

from app.core.rollout.outcomes import Outcomes, VersionOutcomes

_ODDS: Final = (1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0, 1000.0)


class Shares(NamedTuple):
    """Bad requests of both versions, and all, in one interval."""

    candidate_bad: int
    candidate: int
    stable_bad: int
    stable: int


class Counts(msgspec.Struct, frozen=True):
    """Numbers of requests of one version in an interval that is not over, see `VersionOutcomes`."""

    judged: int = 0
    failed: int = 0
    refused: int = 0
    prompt: int = 0
    late: int = 0

    def add(self, outcomes: VersionOutcomes) -> "Counts":
        """Return them with what one report says."""
        return Counts(
            self.judged + outcomes.judged,
            self.failed + outcomes.failed,
            self.refused + outcomes.refused,
            self.prompt + outcomes.prompt,
            self.late + outcomes.late,
        )

    @property
    def some(self) -> bool:
        """Whether there are any."""
        return any((self.judged, self.refused, self.prompt, self.late))


class Counted(msgspec.Struct, frozen=True):
    """The numbers of both versions in an interval; it is over once each has had a request."""

    stable: Counts = Counts()
    candidate: Counts = Counts()

    def add(self, outcomes: Outcomes) -> "Counted":
        """Return the interval with what one report says."""
        return Counted(self.stable.add(outcomes.stable), self.candidate.add(outcomes.candidate))

    @property
    def over(self) -> bool:
        """Whether it can be compared."""
        return self.stable.some and self.candidate.some

    @property
    def failures(self) -> Shares:
        """Those that failed, of those that were not refused."""
        ours, theirs = self.candidate, self.stable
        return Shares(ours.failed, ours.judged, theirs.failed, theirs.judged)

    @property
    def refusals(self) -> Shares:
        """Those that were refused."""
        ours, theirs = self.candidate, self.stable
        answered = ours.judged, theirs.judged
        return Shares(ours.refused, answered[0] + ours.refused, theirs.refused, answered[1] + theirs.refused)

    @property
    def late(self) -> Shares:
        """Those that were late."""
        ours, theirs = self.candidate, self.stable
        return Shares(ours.late, ours.prompt + ours.late, theirs.late, theirs.prompt + theirs.late)


class Odds(msgspec.Struct, frozen=True):
    """Evidence that a bad request is the candidate's more often than a request is.

    Attributes:
        logs: the logarithm of the likelihood of each of `_ODDS`.
        intervals: how many had bad requests.
    """

    logs: tuple[float, ...] = (0.0,) * len(_ODDS)
    intervals: int = 0

    def after(self, shares: Shares) -> "Odds":
        """Return the evidence with one more interval; one in which a version had no request says nothing."""
        bad = shares.candidate_bad + shares.stable_bad
        if not (bad and shares.candidate and shares.stable):
            return self
        part = shares.candidate / (shares.candidate + shares.stable)
        logs = (
            log + shares.candidate_bad * math.log(odds) - bad * math.log1p(part * (odds - 1))
            for log, odds in zip(self.logs, _ODDS, strict=True)
        )
        return Odds(tuple(logs), self.intervals + 1)

    @property
    def log_evidence(self) -> float:
        """The logarithm of the evidence."""
        highest = max(self.logs)
        return highest + math.log(sum(math.exp(log - highest) for log in self.logs) / len(_ODDS))
