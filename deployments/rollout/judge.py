"""Judges whether the candidate of a rollout is worse than the stable version, by an anytime-valid test.

Each rule counts bad requests (failed ones, slow ones, other outputs) and allows a share of them. The evidence
against the candidate is an E-value: were the candidate no worse than allowed, the evidence would ever exceed
1 / (1 - confidence) with a probability of at most 1 - confidence, however often one looks. (A mixture of
binomial likelihoods: Robbins 1970, "Statistical methods related to the law of the iterated logarithm".)
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from app.core.rollout.outcomes import Executions, MirrorOutcomes, Outcomes, VersionOutcomes
from app.core.rollout.spec import ComputeRule, ErrorRule, JudgeRules, LatencyRule
from app.core.rollout.statistics import (
    ONE_SIDED_95,
    count_above,
    microseconds,
    position,
    quantile_position,
    wilson,
)
from app.core.rollout.status import Verdict

LATENCY_FROM: Final = 200
"""Answers of the stable version from which on its quantile is good enough to compare with."""
_COLD_US: Final = 1000.0
"""What an execution may take longer because few come before it, and caches are cold.

A product of 160 x 160 matrices took 94 us after another, and 220 us after a pause of 0.1 s.
"""
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


def judge(rules: JudgeRules, outcomes: Outcomes) -> Verdict:
    """Judge the candidate by the outcomes of one step."""
    alarm = 1 / (1 - rules.confidence)
    findings = list(_findings(rules, outcomes))
    return Verdict(
        alarms=tuple(finding.text for finding in findings if finding.evidence > alarm),
        evidence={finding.rule: finding.evidence for finding in findings},
        detectable=_detectable(rules.errors, outcomes, alarm) if rules.errors else 1.0,
        waiting=_waiting(rules, outcomes),
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


def _findings(rules: JudgeRules, outcomes: Outcomes) -> Iterator[Finding]:
    stable, candidate, mirror = outcomes.stable, outcomes.candidate, outcomes.mirror
    if rules.errors:
        yield _errors(rules.errors, stable, candidate)
        if tried := mirror.compared + mirror.failed:
            yield _mirrored_errors(rules.errors, Sample(mirror.failed, tried))
    if rules.latency and _comparable(outcomes):
        yield _latency(rules.latency, stable, candidate)
    if rules.compute and (found := _compute(rules.compute, stable, candidate)) is not None:
        yield found
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


def _latency(rule: LatencyRule, stable: VersionOutcomes, candidate: VersionOutcomes) -> Finding:
    """Compare how many are above the stable version's quantile, and `ratio` times that at the candidate."""
    allowed = 1 - rule.quantile
    quantile = quantile_position(stable.latencies, rule.quantile)
    limit = quantile + position(rule.ratio)
    slow = Sample(count_above(candidate.latencies, limit), sum(candidate.latencies.values()))
    answered = sum(stable.latencies.values())
    text = (
        f"latency: {slow} of the candidate's answers took longer than {_duration(limit)}, which is"
        f" {rule.ratio:g} times the stable version's {rule.quantile:.4g} quantile, {_duration(quantile)};"
        f" {_allowed(allowed)}"
    )
    return Finding("latency", excess(slow, Sample(allowed * answered, answered), allowed), text)


def _compute(rule: ComputeRule, stable: VersionOutcomes, candidate: VersionOutcomes) -> Finding | None:
    """Compare executions of as many rows: a small share of requests makes small batches, which look fast."""
    allowed = 1 - rule.quantile
    slow = total = 0.0
    compared: dict[int, int] = {}
    for rows, times in candidate.executions.items():
        sizes = _as_large(stable.executions, rows)
        if sizes:
            compared |= {size: sum(stable.executions[size].values()) for size in sizes}
            slow += count_above(times, _compute_limit(rule, [stable.executions[size] for size in sizes]))
            total += sum(times.values())
    if not compared:
        return None
    ours, theirs = Sample(slow, total), sum(compared.values())
    text = (
        f"compute: {ours} of the candidate's executions took longer than {rule.ratio:g} times"
        f" the stable version's {rule.quantile:.4g} quantile of as many rows; {_allowed(allowed)}"
    )
    return Finding("compute", excess(ours, Sample(allowed * theirs, theirs), allowed), text)


def _as_large(executions: Executions, rows: int) -> list[int]:
    """Return the smallest sizes, from some rows on, that have enough executions together; [] without.

    Those of more rows take no less time, so that they do not make the candidate look slow.
    """
    found, known = [], 0
    for size in sorted(size for size in executions if size >= rows):
        found.append(size)
        known += sum(executions[size].values())
        if known >= LATENCY_FROM:
            return found
    return []


def _compute_limit(rule: ComputeRule, sizes: Iterable[Mapping[int, int]]) -> float:
    quantile = quantile_position(sum(map(Counter, sizes), Counter[int]()), rule.quantile)
    return max(quantile + position(rule.ratio), position(microseconds(quantile) + _COLD_US))


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


def _waiting(rules: JudgeRules, outcomes: Outcomes) -> str:
    """Say which rules have nothing to judge by yet."""
    stable = sum(outcomes.stable.latencies.values())
    missing = []
    if rules.errors and not outcomes.candidate.judged:
        missing.append("a request of the candidate")
    if rules.latency and stable < LATENCY_FROM:
        missing.append(f"{LATENCY_FROM - stable} more answers of the stable version, to compare latencies")
    if rules.output != type(rules.output)() and not outcomes.mirror.compared:
        missing.append("a mirrored request, to compare outputs")
    return " and ".join(missing)


def _comparable(outcomes: Outcomes) -> bool:
    return sum(outcomes.stable.latencies.values()) >= LATENCY_FROM and bool(outcomes.candidate.latencies)


def _failed(outcomes: VersionOutcomes) -> Sample:
    return Sample(outcomes.failed, outcomes.judged)


def _allowed(share: float) -> str:
    return f"allowed are {share * 100:.4g} %"


def _duration(position: float) -> str:
    return f"{microseconds(position) / 1000:.3g} ms"
