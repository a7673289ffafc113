"""Judges whether the candidate of a rollout is worse than the stable version, by an anytime-valid test.

Each rule counts bad requests (failed ones, other outputs; slow ones: `intervals.py`) and allows a share of
them. The evidence against the candidate is an E-value: were the candidate no worse than allowed, the evidence
would ever exceed 1 / (1 - confidence) with a probability of at most 1 - confidence, however often one looks.
(A mixture of binomial likelihoods: Robbins 1970, "Statistical methods related to the law of the iterated
logarithm".)
"""

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from app.core.rollout.outcomes import MirrorOutcomes, Outcomes, VersionOutcomes
from app.core.rollout.spec import ComputeRule, ErrorRule, JudgeRules, LatencyRule
from app.core.rollout.statistics import ONE_SIDED_95, wilson
from app.core.rollout.status import Verdict
from deployments.rollout.intervals import TOLERANCE, UNSEEN, Bet, Intervals, enough

_MOST: Final = math.log(1e300)
"""JSON has no infinity."""


class Sample(NamedTuple):
    """How many of `total` requests were bad; a part of one where buckets of durations are divided."""

    bad: float
    total: float

    def __str__(self) -> str:
        return f"{self.bad:,.0f} of {self.total:,.0f} ({self.bad / max(self.total, 1):.2%})"


class Finding(NamedTuple):
    """What one rule says: the evidence against the candidate, and the text of an alarm."""

    rule: str
    evidence: float
    text: str


def judge(rules: JudgeRules, outcomes: Outcomes, intervals: Intervals = UNSEEN) -> Verdict:
    """Judge the candidate by the outcomes of one step, and durations by the intervals of all."""
    alarm = 1 / (1 - rules.confidence)
    findings = list(_findings(rules, outcomes, intervals))
    return Verdict(
        alarms=tuple(finding.text for finding in findings if finding.evidence > alarm),
        evidence={finding.rule: finding.evidence for finding in findings},
        detectable=_detectable(rules.errors, outcomes, alarm) if rules.errors else 1.0,
        waiting=_waiting(rules, outcomes, intervals),
    )


def evidence(sample: Sample, allowed: float) -> float:
    """Return by how much a sample speaks for a share of bad requests above `allowed`; 0 if it has no more."""
    bad, total = sample
    if not total or bad / total <= allowed:
        return 0.0
    if not allowed:
        return math.exp(_MOST)
    good = total - bad
    mixture = math.lgamma(bad + 0.5) + math.lgamma(good + 0.5) - math.lgamma(total + 1) - math.log(math.pi)
    return math.exp(min(mixture - bad * math.log(allowed) - good * math.log1p(-allowed), _MOST))


def excess(candidate: Sample, stable: Sample, budget: float) -> float:
    """Return the evidence for a higher share of bad requests than the budget, and than the stable version's.

    Were the versions alike, the candidate's part of the bad requests would be its part of all requests,
    however many are bad and whenever: it is not to blame for bad input, or a dependency that fails.
    """
    against_budget = evidence(candidate, budget)
    if not stable.total or not against_budget:
        return against_budget
    part = candidate.total / (candidate.total + stable.total)
    return min(against_budget, evidence(Sample(candidate.bad, candidate.bad + stable.bad), part))


def _findings(rules: JudgeRules, outcomes: Outcomes, intervals: Intervals) -> Iterator[Finding]:
    stable, candidate, mirror = outcomes.stable, outcomes.candidate, outcomes.mirror
    if rules.errors:
        yield _errors(rules.errors, stable, candidate)
        if tried := mirror.compared + mirror.failed:
            yield _mirrored_errors(rules.errors, Sample(mirror.failed, tried))
    if rules.latency and intervals.latency.intervals:
        yield _durations("latency", "answers", rules.latency, intervals.latency)
    if rules.compute and intervals.compute.intervals:
        yield _durations("compute", "executions", rules.compute, intervals.compute)
    if mirror.compared:
        yield from _output(rules, mirror)


def _errors(rule: ErrorRule, stable: VersionOutcomes, candidate: VersionOutcomes) -> Finding:
    ours, theirs = _failed(candidate), _failed(stable)
    text = f"errors: {ours} of the candidate's requests failed, of the stable version's {theirs};"
    return Finding("errors", excess(ours, theirs, rule.budget), f"{text} {_allowed(rule.budget)}")


def _mirrored_errors(rule: ErrorRule, sample: Sample) -> Finding:
    """Judge mirrored requests alone: the stable version has answered all of them."""
    text = f"errors: the candidate failed {sample} mirrored requests, which the stable version answered;"
    return Finding("mirrored_errors", evidence(sample, rule.budget), f"{text} {_allowed(rule.budget)}")


def _durations(name: str, what: str, rule: LatencyRule | ComputeRule, bet: Bet) -> Finding:
    slow, expected, total = bet.seen
    text = (
        f"{name}: {Sample(slow, total)} of the candidate's {what} took longer than {rule.ratio:g} times the"
        f" stable version's {rule.quantile:.4g} quantile at the same time, of the stable version's"
        f" {expected / total:.2%}; {_allowed(TOLERANCE)} more"
    )
    return Finding(name, math.exp(min(bet.log_evidence, _MOST)), text)


def _output(rules: JudgeRules, mirror: MirrorOutcomes) -> Iterator[Finding]:
    rule, compared = rules.output, mirror.compared
    if rule.max_difference is not None:
        sample, budget = Sample(mirror.differing, compared), (rules.errors or ErrorRule()).budget
        text = f"output: {sample} mirrored answers differ by more than {rule.max_difference:g}"
        text += f" (by up to {mirror.max_difference:.3g}); {_allowed(budget)}"
        yield Finding("output_difference", evidence(sample, budget), text)
    if rule.min_agreement is not None:
        sample, budget = Sample(mirror.disagreeing, compared), 1 - rule.min_agreement
        text = f"output: {sample} mirrored answers disagree; {_allowed(budget)}"
        yield Finding("output_agreement", evidence(sample, budget), text)


def _detectable(rule: ErrorRule, outcomes: Outcomes, alarm: float) -> float:
    """Return the error rate at which 95 % of such samples have as many failures as an alarm needs."""
    stable, total = _failed(outcomes.stable), outcomes.candidate.judged
    few, enough = 0, total + 1
    while enough - few > 1:  # the evidence rises with the number of failures
        middle = (few + enough) // 2
        if excess(Sample(middle, total), stable, rule.budget) > alarm:
            enough = middle
        else:
            few = middle
    return 1.0 if enough > total else wilson(enough - 0.5, total, ONE_SIDED_95)[1]


def _waiting(rules: JudgeRules, outcomes: Outcomes, intervals: Intervals) -> str:
    """Say which rules have nothing to judge by yet."""
    missing = []
    if rules.errors and not outcomes.candidate.judged:
        missing.append("a request of the candidate")
    if rules.latency and not intervals.latency.intervals:
        number = enough(rules.latency.quantile)
        missing.append(f"{number} answers of the stable version beside one of the candidate's, for latencies")
    if rules.output != type(rules.output)() and not outcomes.mirror.compared:
        missing.append("a mirrored request, to compare outputs")
    return " and ".join(missing)


def _failed(outcomes: VersionOutcomes) -> Sample:
    return Sample(outcomes.failed, outcomes.judged)


def _allowed(share: float) -> str:
    return f"allowed are {share * 100:.4g} %"
