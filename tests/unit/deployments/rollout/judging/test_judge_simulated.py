"""The judge under many simulated rollouts: how often it is wrong, and how soon it is right."""

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest

from app.core.rollout.outcomes import LATENCY_RATIO, Executions, Outcomes, VersionOutcomes
from app.core.rollout.spec import JudgeRules, LatencyRule
from deployments.rollout.judging.intervals import Intervals
from deployments.rollout.judging.judge import Sample, evidence, excess, judge
from deployments.rollout.judging.odds import Odds, Shares

Latencies = Callable[[np.random.Generator, int], npt.NDArray[np.float64]]
ALARM = 1000.0  # at the confidence of 0.999


def lognormal(rng: np.random.Generator, number: int) -> npt.NDArray[np.float64]:
    return rng.lognormal(8, 0.6, number)


def bimodal(rng: np.random.Generator, number: int) -> npt.NDArray[np.float64]:
    """Draw durations with the 95 % quantile in the gap: most take 1 ms, one of 20 takes 20 ms."""
    return rng.normal(1000, 20, number) * np.where(rng.random(number) < 0.05, 20, 1)


def looks(
    rng: np.random.Generator,
    requests: int,
    share: float,
    errors: float,
    latencies: Latencies,
    slower: float = 1.0,
) -> Iterator[Outcomes]:
    """Simulate a rollout of `requests` to both versions; yield the outcomes of each 100 of them."""
    numbers = np.arange(requests + 1) * share
    to_candidate = np.floor(numbers[1:]) > np.floor(numbers[:-1])
    failed = rng.random(requests) < errors
    durations = latencies(rng, requests) * np.where(to_candidate, slower, 1)
    buckets = np.ceil(np.log(durations) / np.log(LATENCY_RATIO)).astype(int)
    for start in range(0, requests, 100):
        counts = np.zeros((2, 2, buckets.max() + 1), int)  # by version, failure, bucket
        part = slice(start, start + 100)
        np.add.at(counts, (to_candidate[part].astype(int), failed[part].astype(int), buckets[part]), 1)
        yield Outcomes(version(counts[0]), version(counts[1]))


def version(counts: npt.NDArray[np.int_]) -> VersionOutcomes:
    answered = {bucket: count for bucket, count in enumerate(counts[0].tolist()) if count}
    return VersionOutcomes(sum(answered.values()), int(counts[1].sum()), latencies=answered)


def alarms(rules: JudgeRules, rollout: Iterator[Outcomes]) -> tuple[str, ...]:
    """The first alarms of a rollout."""
    total, intervals = Outcomes(), Intervals()
    for outcomes in rollout:
        total, intervals = total + outcomes, intervals.add("", outcomes).judged(rules)
        if found := judge(rules, total, intervals).alarms:
            return found
    return ()


def first_alarm(failed: npt.NDArray[np.bool_], every: int, allowed: float) -> int | None:
    """The number of requests after which the evidence is an alarm, if one looks at every so many of them."""
    failures = np.cumsum(failed)[every - 1 :: every].tolist()
    for look, count in enumerate(failures, 1):
        if evidence(Sample(count, look * every), allowed) > ALARM:
            return look * every
    return None


def test_a_candidate_that_uses_up_its_budget_is_not_rolled_back() -> None:
    rng = np.random.default_rng(1)
    found = [first_alarm(rng.random(20_000) < 0.01, 50, 0.01) for _ in range(1000)]
    assert 1000 - found.count(None) <= 1


@pytest.mark.parametrize(
    ("rate", "median", "late"),
    [(0.02, 2635, 5710), (0.05, 220, 530), (0.1, 70, 130), (0.3, 20, 30), (1.0, 10, 10)],
)
def test_failures_are_found_as_soon_as_the_design_says(rate: float, median: int, late: int) -> None:
    """The last column: in 19 of 20 rollouts."""
    rng = np.random.default_rng(2)
    found = [first_alarm(rng.random(8 * late) < rate, 10, 0.01) or 8 * late for _ in range(200)]
    assert np.median(found) == pytest.approx(median, rel=0.25, abs=10)
    assert np.quantile(found, 0.95) == pytest.approx(late, rel=0.3, abs=20)


def is_alarm(counts: list[list[int]]) -> bool:
    """Whether there is an alarm after any of these intervals."""
    odds, bad, total = Odds(), 0, 0
    for shares in (Shares(*each) for each in counts):
        odds, bad, total = odds.after(shares), bad + shares.candidate_bad, total + shares.candidate
        if excess(Sample(bad, total), 0.01, odds) > ALARM:
            return True
    return False


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_failures_that_both_versions_have_roll_nothing_back(share: float) -> None:
    """Of 600 rollouts at an error rate of 5 % or, in one time of ten, of 50 %; intervals of 50 requests."""
    rng = np.random.default_rng(3)
    false = 0
    for _ in range(300):
        bad_times = np.repeat(rng.random(40) < 0.1, 250)
        for rates in (0.05, np.where(bad_times, 0.5, 0.0)):
            ours = np.diff(np.floor(np.arange(10_001) * share)).astype(bool)
            failed = rng.random(10_000) < rates
            sets = (failed & ours, ours, failed & ~ours, ~ours)
            counts = np.array([each.reshape(-1, 50).sum(1) for each in sets]).T.tolist()
            false += is_alarm(counts)
    assert false <= 1


@pytest.mark.parametrize("share", [0.05, 0.5])
@pytest.mark.parametrize("latencies", [lognormal, bimodal])
def test_200_rollouts_of_the_same_version_roll_at_most_1_back(share: float, latencies: Latencies) -> None:
    rng = np.random.default_rng(4)
    found = [alarms(JudgeRules(), looks(rng, 5000, share, 0.01, latencies)) for _ in range(200)]
    assert len([one for one in found if one]) <= 1, found


@pytest.mark.parametrize("latencies", [lognormal, bimodal])
def test_a_quantile_that_is_estimated_gives_no_false_alarm(latencies: Latencies) -> None:
    """The worst case: the candidate may take no longer than the stable version, and takes as long."""
    rules = JudgeRules(errors=None, latency=LatencyRule(ratio=1.0))
    rng = np.random.default_rng(5)
    found = [
        alarms(rules, looks(rng, 4000, share, 0.0, latencies))
        for share in (0.05, 0.5, 0.9)
        for _ in range(70)
    ]
    assert len([one for one in found if one]) <= 1, found


@pytest.mark.parametrize(("slower", "caught"), [(1.0, False), (1.3, False), (2.0, True)])
def test_a_candidate_is_found_that_is_slower_than_the_ratio_of_1_5(slower: float, caught: bool) -> None:
    rng = np.random.default_rng(6)
    found = [alarms(JudgeRules(), looks(rng, 20_000, 0.5, 0.0, lognormal, slower)) for _ in range(20)]
    assert [bool(one) for one in found] == [caught] * 20


def batches(
    rng: np.random.Generator, executions: int, share: float, slower: float = 1.0, tail: float = 1.0
) -> Iterator[Outcomes]:
    """Simulate executions of both versions; yield the outcomes of each 50 of them.

    The more requests, the larger the batches: at most 30 rows come in the time of one. One execution takes
    2 ms and 0.5 ms for each row; one of 30 takes `tail` times as long.
    """
    ours = rng.random(executions) < 0.5
    load = rng.uniform(0.05, 1, executions) * np.where(ours, share, 1 - share)
    rows = np.maximum(rng.poisson(30 * load), 1)
    us = (2000 + 500 * rows) * rng.lognormal(0, 0.3, executions) * np.where(ours, slower, 1)
    us *= np.where(rng.random(executions) < 1 / 30, tail, 1)
    sizes, times = ((np.ceil(np.log2(each) * 4)).astype(int) for each in (rows, us))
    for start in range(0, executions, 50):
        counts = np.zeros((2, sizes.max() + 1, times.max() + 1), int)  # by version, rows, time
        part = slice(start, start + 50)
        np.add.at(counts, (ours[part].astype(int), sizes[part], times[part]), 1)
        stable, candidate = (VersionOutcomes(executions=executed(each)) for each in counts)
        yield Outcomes(stable, candidate)


def executed(counts: npt.NDArray[np.int_]) -> Executions:
    """Return the executions of a table by rows and time."""
    found: Executions = {}
    for rows, time in np.argwhere(counts).tolist():
        found.setdefault(rows, {})[time] = int(counts[rows, time])
    return found


COMPUTE = JudgeRules(errors=None, latency=None)


@pytest.mark.parametrize("tail", [1.0, 10.0])
@pytest.mark.parametrize("share", [0.05, 0.5])
def test_100_rollouts_with_batches_roll_none_back_for_their_executions(share: float, tail: float) -> None:
    rng = np.random.default_rng(8)
    found = [alarms(COMPUTE, batches(rng, 3000, share, tail=tail)) for _ in range(100)]
    assert [one for one in found if one] == []


def test_a_candidate_is_found_whose_executions_take_longer() -> None:
    rng = np.random.default_rng(9)
    found = [alarms(COMPUTE, batches(rng, 60_000, 0.25, slower=2.0)) for _ in range(4)]
    assert all(found)


def test_a_slow_candidate_whose_small_batches_hide_it_is_found_by_its_executions() -> None:
    """Its latencies are no longer than the stable version's, whose batches are larger."""
    rng = np.random.default_rng(10)
    share, slower = 0.2, 2.0
    total, intervals = Outcomes(), Intervals()
    for last in batches(rng, 60_000, share, slower):
        seen = requests_of(last)
        total, intervals = total + last + seen, intervals.add("", last).add("ingress", seen)
        intervals = intervals.judged(JudgeRules())
    verdict = judge(JudgeRules(), total, intervals)
    assert [alarm.partition(":")[0] for alarm in verdict.alarms] == ["compute", "compute_median"]


def delayed(rng: np.random.Generator, seconds: int, slower: float) -> Iterator[Outcomes]:
    """Simulate executions on a busy machine; yield the outcomes of each second, 190 to 10.

    They take 30 ms, and 5 to 45 % of them wait for up to 60 ms more; how many changes each ten seconds.
    """
    busy = np.repeat(rng.uniform(0.1, 0.9, seconds // 10 + 1), 10)
    for second in range(seconds):
        waits = rng.random() < busy[second]
        seen = []
        for executions, factor in ((190, 1.0), (10, slower)):
            us = 30_000 * rng.lognormal(0, 0.02, executions)
            us *= 1 + (factor - 1) * rng.lognormal(0, 0.1, executions)
            us += waits * (rng.random(executions) < 0.5) * rng.uniform(0, 60_000, executions)
            buckets = np.ceil(np.log(us) / np.log(LATENCY_RATIO)).astype(int).tolist()
            seen.append(VersionOutcomes(executions={0: dict(Counter(buckets))}))
        stable, candidate = seen
        yield Outcomes(stable, candidate)


@pytest.mark.parametrize(("slower", "caught"), [(1.0, 0), (1.25, 0), (1.5, 20), (2.0, 20)])
def test_a_candidate_1_5_times_as_slow_is_found_on_a_busy_machine(slower: float, caught: int) -> None:
    """Of 20 rollouts of 5 minutes; the slowest executions of both versions are those that wait."""
    rng = np.random.default_rng(11)
    assert sum(bool(alarms(COMPUTE, delayed(rng, 300, slower))) for _ in range(20)) == caught


def requests_of(last: Outcomes) -> Outcomes:
    """Return requests, one for each row, that took as long as their executions."""
    latencies = [Counter[int]() for _ in range(2)]
    for counted, version in zip(latencies, (last.stable, last.candidate), strict=True):
        for rows, times in version.executions.items():
            counted.update({time: count * round(2 ** (rows / 4)) for time, count in times.items()})
    stable, candidate = (VersionOutcomes(counted.total(), latencies=dict(counted)) for counted in latencies)
    return Outcomes(stable, candidate)


def test_detectable_is_a_rate_that_gives_an_alarm_with_95_percent() -> None:
    rng = np.random.default_rng(7)
    stable, rules = VersionOutcomes(ok=19_800), JudgeRules(latency=None)
    rate = judge(rules, Outcomes(stable, VersionOutcomes(ok=200))).detectable
    assert 0.05 < rate < 0.15
    found = [
        bool(alarms(rules, iter([Outcomes(stable, VersionOutcomes(ok=200 - failed, failed=failed))])))
        for failed in rng.binomial(200, rate, 1000).tolist()
    ]
    assert 930 <= sum(found) <= 970
