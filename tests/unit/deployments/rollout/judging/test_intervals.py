"""Durations are compared within intervals: what the numbers are, and when an interval ends."""

import math

import numpy as np
import pytest

from app.core.rollout.outcomes import Executions, Outcomes, VersionOutcomes
from app.core.rollout.spec import ComputeRule, JudgeRules, LatencyRule
from deployments.rollout.judging.intervals import (
    Bet,
    Interval,
    Intervals,
    compare_answers,
    compare_executions,
    enough,
)
from deployments.rollout.judging.judge import judge

FAST = {60: 98, 64: 2}
"""Most take 33 ms, a few 66 ms."""
RULES = JudgeRules(errors=None)


def answered(stable: dict[int, int], candidate: dict[int, int]) -> Outcomes:
    return Outcomes(VersionOutcomes(latencies=stable), VersionOutcomes(latencies=candidate))


def executed(stable: Executions, candidate: Executions) -> Interval | None:
    return compare_executions(ComputeRule(), stable, candidate)


def after(number: int, stable: dict[int, int], candidate: dict[int, int]) -> Intervals:
    seen = Intervals()
    for _ in range(number):
        seen = seen.add("ingress", answered(stable, candidate)).judged(RULES)
    return seen


def test_slow_answers_are_those_above_the_ratio_times_the_stable_versions_quantile() -> None:
    assert compare_answers(LatencyRule(), FAST, {62: 10, 66: 30}) == pytest.approx((30, 0.8, 40))
    found = compare_answers(LatencyRule(), FAST, FAST)
    assert found is not None and found.slow == pytest.approx(found.expected)


def test_slow_candidate_is_an_alarm_with_its_figures() -> None:
    slow = {bucket + 6: count for bucket, count in FAST.items()}
    verdict = judge(RULES, Outcomes(), after(60, FAST, slow))
    (alarm,) = verdict.alarms
    assert alarm.startswith(
        "latency: 6,000 of 6,000 (100.00%) of the candidate's answers took longer than 1.5"
    )
    assert alarm.endswith("; allowed are 2 % more") and verdict.evidence["latency"] > 1000
    assert judge(RULES, Outcomes(), after(8, FAST, slow)).alarms == (), "8 s are a burst"


def test_rising_load_is_no_alarm_however_large_the_rise() -> None:
    seen = after(60, FAST, FAST)
    for _ in range(60):
        seen = seen.add("ingress", answered({80: 30}, {80: 3000})).judged(RULES)
    assert judge(RULES, Outcomes(), seen).alarms == () and seen.latency.intervals == 120


def test_an_interval_goes_on_until_it_has_enough_answers_of_both_versions() -> None:
    seen = Intervals().add("a", answered({60: 19}, {60: 5})).judged(RULES)
    assert seen.latency.intervals == 0 and seen.pending
    seen = seen.add("b", answered({60: 1}, {})).judged(RULES)
    assert seen.latency.intervals == 0, "of each ingress alone: another one may be slow"
    seen = seen.add("a", answered({60: 1}, {})).judged(RULES)
    assert seen.latency.intervals == 1 and seen.latency.seen.total == 5 and list(seen.pending) == ["b"]
    assert enough(0.99) == 100


def test_what_several_ingresses_report_in_a_second_is_one_interval() -> None:
    seen = Intervals()
    for ingress in "abcd":
        seen = seen.add(ingress, answered(FAST, FAST))
    assert seen.judged(RULES).latency.intervals == 1


def test_intervals_of_many_ingresses_are_bounded() -> None:
    seen = Intervals()
    for number in range(1100):
        seen = seen.add(str(number), answered({60: 1}, {}))
    assert len(seen.pending) == 1024 and "1099" in seen.pending


def test_a_quantile_of_few_answers_favours_neither_version() -> None:
    """Of 20 answers each, equally distributed, whose tail is long; ratio 1: the worst case."""
    rng = np.random.default_rng(1)
    numbers = []
    for buckets in rng.integers(60, 100, (1000, 2, 20)):
        stable, candidate = (dict(zip(*np.unique(each, return_counts=True), strict=True)) for each in buckets)
        found = compare_answers(LatencyRule(ratio=1.0), stable, candidate)
        assert found is not None
        numbers.append((found.slow - found.expected) / found.total)
    assert abs(np.mean(numbers)) < 4 * np.std(numbers) / len(numbers) ** 0.5


def test_evidence_is_the_wealth_of_one_who_bets() -> None:
    first = Bet().after(Interval(1, 0, 1))
    assert first.log_evidence == 0, "nothing is known before the first"
    known = Bet(weight=100.0, sum=50.0, squares=100.0)  # of a mean of 0.5 and a variance of 1
    bet = 0.48 / (1 + 0.48**2)
    assert known.after(Interval(1, 0, 4)).log_evidence == pytest.approx(np.log1p(bet * 0.23))
    assert known.after(Interval(0, 1, 1)).log_evidence == pytest.approx(np.log1p(bet * -1.02))
    most = known.after(Interval(1, 0, 1)).log_evidence
    assert most == pytest.approx(np.log1p(bet * 0.28)), "one interval says so much at most"


@pytest.mark.parametrize(("excess", "needed"), [(1.0, 31), (0.3, 31), (0.1, 100)])
def test_trouble_of_seconds_is_no_alarm_however_bad_and_a_little_that_stays_is_one(
    excess: float, needed: int
) -> None:
    seen, number = Bet(), 0
    while math.exp(seen.log_evidence) <= 1000:
        seen, number = seen.after(Interval(10 * excess, 0, 10)), number + 1
    assert needed <= number <= 1.1 * needed + 3


def test_executions_of_other_rows_are_compared_only_with_larger_ones() -> None:
    assert executed({16: {60: 100}}, {0: {64: 40}}) == (40, 0, 40), "a batch of 16 takes no less time than 1"
    assert executed({0: {60: 100}}, {16: {70: 40}}) is None
    assert executed({0: {60: 100}, 16: {60: 100}}, {0: {61: 7}, 16: {70: 40}}) == pytest.approx((40, 0, 47))


def test_executions_are_not_compared_with_few_of_the_stable_version() -> None:
    assert executed({0: {60: 19}}, {0: {70: 40}}) is None
    assert executed({0: {60: 19}, 8: {60: 21}}, {0: {70: 40}}) == (40, 0, 40), "with those of 4 rows too"
    assert executed({0: {60: 19}, 8: {80: 21}}, {0: {70: 40}}) == (0, 0, 40)


def test_a_cold_execution_or_answer_may_take_a_millisecond_longer() -> None:
    """Bucket 20 is of 32 us, 40 of 1 ms."""
    assert executed({0: {20: 100}}, {0: {40: 100}}) == (0, 0, 100)
    assert executed({0: {20: 100}}, {0: {42: 100}}) == (100, 0, 100)
    assert compare_answers(LatencyRule(), {20: 100}, {40: 100}) == (0, 0, 100)
