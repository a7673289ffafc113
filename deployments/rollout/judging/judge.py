"""Judges whether the candidate of a rollout is worse than the stable version, by an anytime-valid test.

Each rule counts bad requests (failed and refused ones, other outputs; slow ones: `intervals.py`) and allows
a share of them. The evidence against the candidate is an E-value: were the candidate no worse than allowed,
the evidence would ever exceed 1 / (1 - confidence) with a probability of at most 1 - confidence, however
often one looks. (A mixture of binomial likelihoods: Robbins 1970, "Statistical methods related to the law of
the iterated logarithm".) What the stable version does too is compared within intervals: `odds.py`.
"""

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from app.core.rollout.outcomes import MirrorOutcomes, Outcomes, VersionOutcomes
from app.core.rollout.spec import ClassRule, ComputeRule, ErrorRule, JudgeRules, LatencyRule, OutputRules
from app.core.rollout.statistics import ONE_SIDED_95, wilson
from app.core.rollout.status import Verdict
from deployments.rollout.judging.classes import ClassOdds
from deployments.rollout.judging.intervals import MEDIAN_TOLERANCE, TOLERANCE, UNSEEN, Bet, Intervals, enough
from deployments.rollout.judging.odds import Odds, Shares

_MOST: Final = math.log(1e300)
"""JSON has no infinity."""
_ALONE: Final = 200
"""Requests of the candidate beside which there would be one of the stable version, did that get any."""


class Sample(NamedTuple):
    """How many of `total` requests were bad; a part of one where buckets of durations are divided."""

    bad: float
    total: float

    def __str__(self) -> str:
        return f"{self.bad:,.0f} of {self.total:,.0f} ({self.bad / max(self.total, 1):.2%})"


class Finding(NamedTuple):
    """The finding of one rule: the evidence against the candidate, and the text of an alarm."""

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


def excess(sample: Sample, budget: float, compared: Odds) -> float:
    """Return the evidence for more bad requests than the budget, and than the stable version's.

    Args:
        sample: the candidate's.
        budget: the share of them that is allowed.
        compared: both versions' within intervals.
    """
    return min(evidence(sample, budget), math.exp(min(compared.log_evidence, _MOST)))


def _findings(rules: JudgeRules, outcomes: Outcomes, intervals: Intervals) -> Iterator[Finding]:
    mirror = outcomes.mirror
    if rules.errors:
        yield _errors(rules.errors, outcomes, intervals)
        if outcomes.candidate.refused:
            yield _refusals(rules.errors, outcomes, intervals)
        if tried := mirror.compared + mirror.failed:
            yield _mirrored_errors(rules.errors, Sample(mirror.failed, tried))
    if rules.latency and intervals.late.seen.slow:
        yield _late(intervals.late)
    if rules.latency and intervals.latency.intervals:
        quantile = _quantile(rules.latency)
        yield _durations("latency", f"answers took longer than {quantile}", intervals.latency, TOLERANCE)
    if rules.compute and intervals.compute.intervals:
        limits = {
            "compute": (_quantile(rules.compute), intervals.compute, TOLERANCE),
            "compute_median": (
                f"{rules.compute.ratio:g} times the stable version's median",
                intervals.compute_median,
                MEDIAN_TOLERANCE,
            ),
        }
        for name, (limit, bet, tolerance) in limits.items():
            yield _durations(name, f"executions took longer than {limit}", bet, tolerance)
    if rules.output is not None and rules.output.given and mirror.telling:
        yield _output(rules.output, mirror)
    if rules.drift and intervals.classes.odds:
        yield _classes(rules.drift, intervals.classes)


def _errors(rule: ErrorRule, outcomes: Outcomes, intervals: Intervals) -> Finding:
    ours, theirs = _failed(outcomes.candidate), _failed(outcomes.stable)
    text = f"errors: {ours} of the candidate's requests failed, of the stable version's {theirs};"
    found = _beside(ours, theirs, rule, intervals.failures, Sample(*intervals.failed_alone))
    return Finding("errors", found, f"{text} {_allowed(rule.budget)}")


def _refusals(rule: ErrorRule, outcomes: Outcomes, intervals: Intervals) -> Finding:
    """Judge requests that were refused, and not repeated or refused by the stable version too."""
    ours, theirs = _refused(outcomes.candidate), _refused(outcomes.stable)
    text = f"refusals: {ours} of the candidate's requests were refused, of the stable version's {theirs};"
    found = excess(ours, rule.budget, intervals.refusals)
    return Finding("refusals", found, f"{text} {_allowed(rule.budget)} more")


def _classes(rule: ClassRule, found: ClassOdds) -> Finding:
    """Judge the class of which the candidate has most more than the stable version, and than is allowed."""
    surest, text = 0.0, ""
    for name, shares, log_evidence in found.surpluses:
        ours = Sample(shares.candidate_bad, shares.candidate)
        theirs = Sample(shares.stable_bad, shares.stable)
        limit = theirs.bad / theirs.total + rule.allowed
        against = min(math.exp(min(log_evidence, _MOST)), evidence(ours, limit) if limit < 1 else 0.0)
        if against >= surest:
            text = (
                f"classes: {ours} of the candidate's answers are of class '{name}', of the stable version's"
            )
            surest, text = against, f"{text} {theirs}; {_allowed(rule.allowed)} more"
    return Finding("drift", surest, text)


def _beside(ours: Sample, theirs: Sample, rule: ErrorRule, compared: Odds, alone: Sample) -> float:
    """Return the evidence beside the stable version, by the budget alone where that has no requests."""
    if not theirs.total:
        return evidence(ours, rule.budget)
    found = excess(ours, rule.budget, compared)
    return max(found, evidence(alone, rule.budget)) if alone.total >= _ALONE else found


def _mirrored_errors(rule: ErrorRule, sample: Sample) -> Finding:
    """Judge mirrored requests alone: the stable version has answered all of them."""
    text = f"errors: the candidate failed {sample} mirrored requests, which the stable version answered;"
    return Finding("mirrored_errors", evidence(sample, rule.budget), f"{text} {_allowed(rule.budget)}")


def _late(bet: Bet) -> Finding:
    slow, expected, total = bet.seen
    text = (
        f"late: {Sample(slow, total)} of the candidate's requests were not answered after ten times the"
        f" stable version's 0.99 quantile, of the stable version's {expected / total:.2%};"
        f" {_allowed(TOLERANCE)} more"
    )
    return Finding("late", math.exp(min(bet.log_evidence, _MOST)), text)


def _quantile(rule: LatencyRule | ComputeRule) -> str:
    return f"{rule.ratio:g} times the stable version's {rule.quantile:.4g} quantile"


def _durations(name: str, what: str, bet: Bet, tolerance: float) -> Finding:
    slow, expected, total = bet.seen
    text = (
        f"{name}: {Sample(slow, total)} of the candidate's {what} at the same time, of the stable version's"
        f" {expected / total:.2%}; {_allowed(tolerance)} more"
    )
    return Finding(name, math.exp(min(bet.log_evidence, _MOST)), text)


def _output(rule: OutputRules, mirror: MirrorOutcomes) -> Finding:
    sample = Sample(mirror.bad, mirror.telling)
    text = (
        f"output: {sample} mirrored answers are not as expected: {mirror.differing:,} by their values (up to "
        f"{mirror.max_difference:.3g}), {mirror.disagreeing:,} by which one is largest;"
    )
    return Finding("output", evidence(sample, rule.allowed), f"{text} {_allowed(rule.allowed)}")


def _detectable(rule: ErrorRule, outcomes: Outcomes, alarm: float) -> float:
    """Return the error rate at which 95 % of such samples have as many failures as an alarm needs."""
    stable, total = _failed(outcomes.stable), outcomes.candidate.judged
    few, enough = 0, total + 1
    while enough - few > 1:  # the evidence rises with the number of failures
        middle = (few + enough) // 2
        compared = Odds().after(Shares(middle, total, int(stable.bad), int(stable.total)))
        if _beside(Sample(middle, total), stable, rule, compared, Sample(0, 0)) > alarm:
            enough = middle
        else:
            few = middle
    return 1.0 if enough > total else wilson(enough - 0.5, total, ONE_SIDED_95)[1]


def _waiting(rules: JudgeRules, outcomes: Outcomes, intervals: Intervals) -> str:
    """Say which rules have nothing to judge by yet."""
    missing = []
    if rules.errors and not outcomes.candidate.decided:
        missing.append("a request of the candidate")
    if rules.latency and not intervals.latency.intervals:
        number = enough(rules.latency.quantile)
        missing.append(f"{number} answers of the stable version beside one of the candidate's, for latencies")
    if rules.output is not None and rules.output.given and not outcomes.mirror.compared:
        missing.append("a mirrored request, to compare outputs")
    if rules.drift and not intervals.classes.odds:
        missing.append("an answer with a class of each version")
    return " and ".join(missing)


def _failed(outcomes: VersionOutcomes) -> Sample:
    return Sample(outcomes.failed, outcomes.judged)


def _refused(outcomes: VersionOutcomes) -> Sample:
    return Sample(outcomes.refused, outcomes.judged + outcomes.refused)


def _allowed(share: float) -> str:
    return f"allowed are {share * 100:.4g} %"
