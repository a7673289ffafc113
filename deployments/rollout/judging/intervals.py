"""Compares both versions of a rollout within intervals, in which they met the same load. Pure.

How often they fail or refuse requests: `odds.py`. How long they take:

An interval is what one ingress reports at once, a second's answers, or as many seconds' as it needs for
enough answers of both versions. The test's unit is the interval: a burst, or a stalled machine, counts once,
however many requests it delays. Each gives a number of -1 to 1, by how much more of the candidate's answers
are slow. Of versions that are alike its expectation is 0, whatever the load. The evidence is the wealth of
one who bets on more than a tolerance: were there no more, it would ever exceed 1,000 once in 1,000 rollouts,
however often one looks (Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting",
2023).
"""

import math
from collections import Counter
from collections.abc import Mapping
from itertools import accumulate
from typing import Final, NamedTuple, TypeVar

import msgspec

from app.core.rollout.outcomes import Executions, Outcomes, joined
from app.core.rollout.spec import ComputeRule, JudgeRules, LatencyRule
from app.core.rollout.statistics import count_above, microseconds, position, quantile_position
from deployments.rollout.judging.classes import ClassOdds, Mix
from deployments.rollout.judging.odds import Counted, Odds, Shares

TOLERANCE: Final = 0.02
"""The share of slow answers that the candidate may have more than the stable version."""
MEDIAN_TOLERANCE: Final = 0.2
"""The share of the candidate's executions that may be longer than `ratio` times the stable version's median.

It is what it has more than the stable version. A busy machine delays the slowest executions of both, and the
quantile of a rule with them, so that a candidate 1.5 times as slow has no more above it; the median stays.
"""
MIN_STABLE: Final = 20
"""Answers of the stable version in an interval, without which its quantile says little."""
_COLD_US: Final = 1000.0
"""What an answer may take longer because few come before it, and caches are cold.

A product of 160 x 160 matrices took 94 us after another, and 220 us after a pause of 0.1 s.
"""
_LARGEST_BET: Final = 0.9
"""Of the wealth. A candidate 1.5 times as slow is found in half the time that a half takes."""
_LARGEST_EXCESS: Final = 0.3
"""Of an interval: so that 31 bad intervals are needed for an alarm, and trouble of seconds is none."""
_LARGEST_MEDIAN_EXCESS: Final = _LARGEST_EXCESS + MEDIAN_TOLERANCE - TOLERANCE
_LATE_EXCESS: Final = 1.0
"""Of requests that take ten times as long as the slowest usually do: 12 intervals are needed."""
_MEMORY: Final = 0.99
"""The weight of an interval's number in the next bets falls by this with each interval after it."""
_SIZES: Final = 10
"""Sizes for whose executions an interval waits: only beside much larger ones a slow one looks fast."""
_MOST_SOURCES: Final = 1024

T = TypeVar("T")
Times = Mapping[int, int]
"""Numbers of durations by bucket."""


class Interval(NamedTuple):
    """How many of the candidate's answers were slow; `expected` would be, did it do as the stable version."""

    slow: float = 0.0
    expected: float = 0.0
    total: float = 0.0

    def and_also(self, other: "Interval") -> "Interval":
        """Return both as one."""
        return Interval(self.slow + other.slow, self.expected + other.expected, self.total + other.total)


class Bet(msgspec.Struct, frozen=True):
    """Evidence that the candidate has more slow answers.

    Attributes:
        log_evidence: the logarithm of the wealth, which began with 1.
        intervals: numbers that were bet on.
        seen: all intervals together.
        weight, sum, squares: by which the next bet is chosen: sums of weights, of the numbers, and
            of their squared deviations.
    """

    log_evidence: float = 0.0
    intervals: int = 0
    seen: Interval = Interval()
    weight: float = 1.0
    sum: float = 0.0
    squares: float = 0.25

    def after(self, interval: Interval, most: float = _LARGEST_EXCESS, tolerance: float = TOLERANCE) -> "Bet":
        """Return the evidence with one more interval, on which the bet was placed before it was seen.

        Counting no more than `most` of it only lowers what is expected, and with that the evidence.
        """
        if not interval.total:
            return self
        excess = min((interval.slow - interval.expected) / interval.total, most)
        mean, variance = self.sum / self.weight, max(self.squares / self.weight, 1e-4)
        edge = mean - tolerance
        bet = min(max(edge / (variance + edge * edge), 0.0), _LARGEST_BET)
        return Bet(
            self.log_evidence + math.log1p(bet * (excess - tolerance)),
            self.intervals + 1,
            self.seen.and_also(interval),
            self.weight * _MEMORY + 1,
            self.sum * _MEMORY + excess,
            self.squares * _MEMORY + (excess - mean) ** 2,
        )


class Pending(msgspec.Struct, frozen=True):
    """Durations of both versions in an interval that is not over."""

    stable: dict[int, int] = {}
    candidate: dict[int, int] = {}
    stable_executions: Executions = {}
    candidate_executions: Executions = {}

    def add(self, outcomes: Outcomes) -> "Pending":
        """Return the interval with what one report says."""
        stable, candidate = outcomes.stable, outcomes.candidate
        return Pending(
            dict(Counter(self.stable) + Counter(stable.latencies)),
            dict(Counter(self.candidate) + Counter(candidate.latencies)),
            joined(self.stable_executions, stable.executions),
            joined(self.candidate_executions, candidate.executions),
        )


class Intervals(msgspec.Struct, frozen=True):
    """The evidence of the steps of a rollout.

    Attributes:
        pending: durations of the intervals that are not over, by who reports them.
        counted: numbers of requests of those that are not over, by who reports them.
        latency: the evidence of answers' durations.
        compute: the evidence of executions' durations.
        compute_median: the same, beside the stable version's median.
        late: the evidence of requests that were late.
        failures, refusals: the evidence of requests that failed, or were refused.
        mixes: classes of answers of the intervals that are not over, by who reports them.
        classes: the evidence of the mix of classes.
    """

    pending: dict[str, Pending] = {}
    counted: dict[str, Counted] = {}
    latency: Bet = Bet()
    compute: Bet = Bet()
    compute_median: Bet = Bet()
    late: Bet = Bet(weight=0.25, sum=0.1, squares=0.05)
    failures: Odds = Odds()
    refusals: Odds = Odds()
    mixes: dict[str, Mix] = {}
    classes: ClassOdds = ClassOdds()

    def add(self, source: str, outcomes: Outcomes) -> "Intervals":
        """Return them with a report."""
        pending = self.pending.get(source, Pending()).add(outcomes)
        counted = self.counted.get(source, Counted()).add(outcomes)
        mix = self.mixes.get(source, Mix()).add(outcomes)
        return msgspec.structs.replace(
            self,
            pending=_with(self.pending, source, pending) if pending != Pending() else self.pending,
            counted=_with(self.counted, source, counted) if counted != Counted() else self.counted,
            mixes=_with(self.mixes, source, mix) if mix != Mix() else self.mixes,
        )

    @property
    def failed_alone(self) -> tuple[int, int]:
        """The candidate's failures, and requests, of intervals without one of the stable version so far."""
        alone = [each.candidate for each in self.counted.values() if not each.stable.some]
        return sum(each.failed for each in alone), sum(each.judged for each in alone)

    def carried(self) -> "Intervals":
        """Return the evidence for the next step, without the intervals that are not over."""
        return msgspec.structs.replace(self, pending={}, counted={}, mixes={})

    def judged(self, rules: JudgeRules) -> "Intervals":
        """End the intervals that have enough answers; all that end now are one interval of the test."""
        # Whether one ends depends on how many answers there are, never on what they were.
        over = {source: counted for source, counted in self.counted.items() if counted.over}
        failures, refusals, late = self.failures, self.refusals, Interval()
        for counted in over.values():
            failures, refusals = failures.after(counted.failures), refusals.after(counted.refusals)
            late = late.and_also(_excess(counted.late))
        left = {source: counted for source, counted in self.counted.items() if source not in over}
        judged = msgspec.structs.replace(self, counted=left, failures=failures, refusals=refusals)
        judged = msgspec.structs.replace(judged, late=self.late.after(late, _LATE_EXCESS))
        return judged._judge_classes()._judge_durations(rules)

    def _judge_classes(self) -> "Intervals":
        over = {source: mix for source, mix in self.mixes.items() if mix.over}
        classes = self.classes
        for mix in over.values():
            classes = classes.after(mix)
        left = {source: mix for source, mix in self.mixes.items() if source not in over}
        return msgspec.structs.replace(self, mixes=left, classes=classes)

    def _judge_durations(self, rules: JudgeRules) -> "Intervals":
        latency = compute = compute_median = Interval()
        left = {}
        for source, pending in self.pending.items():
            ended = None
            if rules.latency:
                ended = compare_answers(rules.latency, pending.stable, pending.candidate)
                latency = latency.and_also(ended or Interval())
            if rules.compute and ended is None:
                executions = pending.stable_executions, pending.candidate_executions
                ended = compare_executions(rules.compute, *executions)
                if ended is not None:
                    compute = compute.and_also(ended)
                    median = compare_executions(
                        msgspec.structs.replace(rules.compute, quantile=0.5), *executions
                    )
                    compute_median = compute_median.and_also(median or Interval())
            if ended is None:
                left[source] = pending
        return msgspec.structs.replace(
            self,
            pending=left,
            latency=self.latency.after(latency),
            compute=self.compute.after(compute),
            compute_median=self.compute_median.after(
                compute_median, _LARGEST_MEDIAN_EXCESS, MEDIAN_TOLERANCE
            ),
        )


def _with(waiting: Mapping[str, T], source: str, one: T) -> dict[str, T]:
    """Return intervals with that of a source; of too many, those of the oldest sources are dropped."""
    added = {**waiting, source: one}
    if len(added) > _MOST_SOURCES:
        del added[next(iter(added))]
    return added


def _excess(shares: Shares) -> Interval:
    """Return how many of the candidate's requests were bad; those of the stable version are expected."""
    if not (shares.candidate and shares.stable):
        return Interval()
    expected = shares.candidate * shares.stable_bad / shares.stable
    return Interval(shares.candidate_bad, expected, shares.candidate)


UNSEEN: Final = Intervals()


def enough(quantile: float) -> int:
    """Return how many answers an interval needs of the stable version."""
    return max(MIN_STABLE, math.ceil(1 / (1 - quantile)))


def compare_answers(rule: LatencyRule, stable: Times, candidate: Times) -> Interval | None:
    """Compare the answers of one interval; None while there are too few."""
    if not candidate or sum(stable.values()) < enough(rule.quantile):
        return None
    return _compare(rule, stable, candidate)


def compare_executions(rule: ComputeRule, stable: Executions, candidate: Executions) -> Interval | None:
    """Compare executions of as many rows: a small share of requests makes small batches, which look fast."""
    known = sum(sum(times.values()) for times in stable.values())
    if known < enough(rule.quantile) * min(len(stable), _SIZES):
        return None
    found = Interval()
    for rows, times in candidate.items():
        sizes = _as_large(stable, rows, enough(rule.quantile))
        if sizes:
            durations = sum((Counter(stable[size]) for size in sizes), Counter[int]())
            found = found.and_also(_compare(rule, durations, times))
    return found if found.total else None


def _as_large(executions: Executions, rows: int, wanted: int) -> list[int]:
    """Return the smallest sizes, from some rows on, that have enough executions together; [] without.

    Those of more rows take no less time, so that they do not make the candidate look slow.
    """
    sizes = sorted(size for size in executions if size >= rows)
    known = accumulate(sum(executions[size].values()) for size in sizes)
    for number, total in enumerate(known, 1):
        if total >= wanted:
            return sizes[:number]
    return []


def _compare(rule: LatencyRule | ComputeRule, stable: Times, candidate: Times) -> Interval:
    """Compare with `ratio` times the stable version's quantile.

    Each answer of the stable version is held against the quantile of its others, and those of the candidate
    against the same quantiles: else a quantile of few would be too low for the candidate alone, which has no
    part in it.
    """
    slow = expected = 0.0
    known, total = sum(stable.values()), sum(candidate.values())
    for bucket, count in stable.items():
        limit = _limit(rule, _without(stable, bucket))
        slow += count / known * count_above(candidate, limit)
        expected += count / known * total * count_above({bucket: 1}, limit)
    return Interval(slow, expected, total)


def _without(times: Times, bucket: int) -> Times:
    left = {**times, bucket: times[bucket] - 1}
    return {number: count for number, count in left.items() if count}


def _limit(rule: LatencyRule | ComputeRule, times: Times) -> float:
    quantile = quantile_position(times, rule.quantile)
    return max(quantile + position(rule.ratio), position(microseconds(quantile) + _COLD_US))
