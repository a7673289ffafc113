"""Thousands of simulated rollouts under changing load: false alarms, and seconds to find a bad candidate.

`python -m pytest -m slow -s` of this file prints the tables of docs/develop/rollout_judge.md.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from app.core.rollout.outcomes import Outcomes, VersionOutcomes
from app.core.rollout.spec import JudgeRules
from app.core.rollout.statistics import count_above, position
from app.rollout.flights import Flights
from deployments.rollout.judging.intervals import Intervals
from deployments.rollout.judging.judge import judge
from deployments.rollout.states.machine import WARM_REQUESTS, WARM_SECONDS

Factors = npt.NDArray[np.float64]
"""How many times as long an answer takes as usually; spread to (2 versions, 4 replicas, seconds)."""
Load = Callable[[np.random.Generator, int], Factors]
RULES = JudgeRules(errors=None, compute=None)
ALARM = math.log(1000)
MEDIAN_US = 30_000
SHARES = [(190, 2), (190, 10), (100, 100), (2, 198)]
"""Answers a second of the stable version and of the candidate; at last after the promotion."""


def doubles(rng: np.random.Generator, seconds: int) -> Factors:
    """Draw a load that rises or falls by 2 or 5 each minute, for both versions."""
    steps = rng.choice([0.2, 0.5, 2, 5], seconds // 60 + 1)
    return np.repeat(np.clip(np.cumprod(steps), 0.1, 50), 60)[:seconds]


def bursts(rng: np.random.Generator, seconds: int) -> Factors:
    """Draw seconds, one of twenty, in which both versions take ten times as long."""
    return np.where(rng.random(seconds) < 0.05, 10.0, 1.0)


def cold(rng: np.random.Generator, seconds: int) -> Factors:
    """Draw caches that are cold when judging begins: five times as long, then less."""
    factors = np.ones((2, 1, seconds))
    factors[1] += 4 * np.exp(-np.arange(seconds) / 3)
    return factors


def stalls(rng: np.random.Generator, seconds: int) -> Factors:
    """Draw machines, each with one of the versions, of which each stands still for 2 s every 100 s."""
    stalled = rng.random((2, 1, seconds)) < 0.01
    stalled[..., 1:] |= stalled[..., :-1]
    return np.where(stalled, 2e6 / MEDIAN_US, 1.0)


def waves(rng: np.random.Generator, seconds: int) -> Factors:
    """Draw days, of 2 minutes each: at their height an answer takes nine times as long as at their lowest."""
    return np.exp(1.1 * np.sin(2 * np.pi * (np.arange(seconds) / 120 + rng.random())))


def slow_replica(rng: np.random.Generator, seconds: int) -> Factors:
    """Draw times in which one of a version's four replicas takes ten times as long: see `spells`."""
    return spells(rng, seconds, replicas=4)


def only_replica(rng: np.random.Generator, seconds: int) -> Factors:
    """Draw times in which a version's only replica takes ten times as long: see `spells`."""
    return spells(rng, seconds, replicas=1)


def spells(rng: np.random.Generator, seconds: int, replicas: int) -> Factors:
    """Draw times of 5 s on average, for each replica once in 200 s on average."""
    factors = np.ones((2, replicas, seconds))
    for version, replica, second in np.argwhere(rng.random(factors.shape) < 1 / 200).tolist():
        factors[version, replica, second : second + int(rng.geometric(1 / 5))] = 10
    return factors


def everything(rng: np.random.Generator, seconds: int) -> Factors:
    """Draw all of these at once, but for an only replica that is slow."""
    found = np.ones((2, 4, seconds))
    for load in (doubles, bursts, cold, slow_replica, stalls, waves):
        found = found * load(rng, seconds)
    return found


LOADS: dict[str, Load] = {
    "load that changes by 2 or 5": doubles,
    "bursts": bursts,
    "cold caches": cold,
    "one of four replicas is slow": slow_replica,
    "stalls of 2 s": stalls,
    "daily waves": waves,
    "all of these": everything,
}


def histograms(
    rng: np.random.Generator, rate: int, factors: npt.NDArray[np.float64], tail: float
) -> list[dict[int, int]]:
    """Draw the answers of each second; one of ten takes `tail` times as long."""
    seconds = factors.shape[1]
    second = np.repeat(np.arange(seconds), rng.poisson(rate, seconds))
    us = (
        MEDIAN_US * factors[rng.integers(0, 4, len(second)), second] * np.exp(rng.normal(0, 0.5, len(second)))
    )
    us *= np.where(rng.random(len(second)) < 0.1, tail, 1)
    buckets = np.ceil(np.log2(np.maximum(us, 1)) * 4).astype(int)
    counts = np.bincount(second * 200 + buckets, minlength=seconds * 200).reshape(-1, 200)
    return [
        dict(zip(found.tolist(), row[found].tolist(), strict=True))
        for row in counts
        for found in [row.nonzero()[0]]
    ]


def alarm(
    rng: np.random.Generator,
    seconds: int,
    rates: tuple[int, int],
    load: Load,
    slower: float = 1.0,
    tail: float = 1.0,
) -> float:
    """Simulate a rollout; return the second of the alarm, infinite without one."""
    factors = np.broadcast_to(load(rng, seconds), (2, 4, seconds))
    stable = histograms(rng, rates[0], factors[0], 1.0)
    candidate = histograms(rng, rates[1], factors[1] * slower, tail)
    seen, usual = Intervals(), Usual()
    for second, (ours, theirs) in enumerate(zip(candidate, stable, strict=True), 1):
        report = Outcomes(usual.answered(theirs), usual.answered(ours))
        usual.learn(theirs)
        seen = seen.add("", report).judged(RULES)
        if max(seen.latency.log_evidence, seen.late.log_evidence) > ALARM:
            return second
    return math.inf


class Usual:
    """What an ingress takes for late, and for a hang, by the stable version's answers so far."""

    def __init__(self) -> None:
        self._flights = Flights()
        self._seconds = 0

    def learn(self, times: dict[int, int]) -> None:
        for bucket, count in times.items():
            for _ in range(count):
                self._flights.durations.add(2 ** (bucket / 4) / 1e6)
        self._seconds += 1
        self._flights.durations.end_interval(self._seconds)
        self._flights.sweep()

    @property
    def late(self) -> float:
        return self._flights.late_s

    @property
    def hang(self) -> float:
        return self._flights.hang_s

    def answered(self, times: dict[int, int]) -> VersionOutcomes:
        late = round(count_above(times, position(self.late * 1e6)))
        total = sum(times.values())
        return VersionOutcomes(ok=total, prompt=total - late, late=late, latencies=times)


def alarm_without_answers(
    rng: np.random.Generator, seconds: int, rates: tuple[int, int], load: Load, share: float, kind: str
) -> float:
    """Simulate a candidate that hangs with, or refuses, a share of its requests; return when."""
    factors = np.broadcast_to(load(rng, seconds), (2, 4, seconds))
    stable = histograms(rng, rates[0], factors[0], 1.0)
    asked = rng.binomial(rng.poisson(rates[1], seconds), share)
    answered = histograms(rng, round(rates[1] * (1 - share)), factors[1], 1.0)
    usual = Usual()
    seen, total = Intervals(), Outcomes()
    for second, theirs in enumerate(stable):
        ours = usual.answered(answered[second])
        if kind == "refuses":
            ours = ours + VersionOutcomes(refused=int(asked[second]), prompt=int(asked[second]))
        else:
            late, hangs = (int(second - after) for after in (usual.late, usual.hang))
            ours = ours + VersionOutcomes(
                late=int(asked[late]) if late >= 0 else 0, failed=int(asked[hangs]) if hangs >= 0 else 0
            )
        usual.learn(theirs)
        report = Outcomes(usual.answered(theirs), ours)
        if second < WARM_SECONDS and ours.decided < WARM_REQUESTS:
            continue
        total, seen = total + report, seen.add("", report).judged(JudgeRules(compute=None))
        if judge(JudgeRules(compute=None), total, seen).alarms:
            return second + 1
    return math.inf


@pytest.mark.parametrize("name", LOADS)
def test_rollouts_of_the_same_version_under_changing_load_are_not_rolled_back(name: str) -> None:
    rng = np.random.default_rng(1)
    found = [alarm(rng, 120, rates, LOADS[name]) for rates in SHARES for _ in range(3)]
    assert found == [math.inf] * 12


@pytest.mark.parametrize("rates", SHARES[:3])
def test_a_candidate_that_takes_three_times_as_long_is_found_under_changing_load(
    rates: tuple[int, int],
) -> None:
    rng = np.random.default_rng(2)
    found = [alarm(rng, 300, rates, doubles, slower=3) for _ in range(3)]
    assert max(found) < 250, found


@pytest.mark.parametrize(("kind", "longest"), [("hangs", 16), ("refuses", 8)])
@pytest.mark.parametrize("rates", SHARES[1:])
def test_a_candidate_that_answers_nothing_is_found_soon(
    rates: tuple[int, int], kind: str, longest: int
) -> None:
    rng = np.random.default_rng(5)
    found = [alarm_without_answers(rng, 60, rates, bursts, 1.0, kind) for _ in range(4)]
    assert max(found) <= longest, found


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("kind", "share"), [("hangs", 1.0), ("hangs", 0.1), ("refuses", 1.0), ("refuses", 0.1)]
)
def test_how_soon_a_candidate_is_found_that_does_not_answer(kind: str, share: float) -> None:
    """Of 40 rollouts of 600 s at each share, under a load that changes and bursts."""
    rng = np.random.default_rng(6)

    def load(rng: np.random.Generator, seconds: int) -> Factors:
        return doubles(rng, seconds) * bursts(rng, seconds)

    cells = []
    for rates in SHARES:
        found = [alarm_without_answers(rng, 600, rates, load, share, kind) for _ in range(40)]
        cells.append(f"{np.median(found):.0f} ({np.quantile(found, 0.9, method='lower'):.0f})")
    print(f"\n| {kind} {share:.0%} | {' | '.join(cells)} |")


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", [*LOADS, "the only replica is slow"])
def test_false_alarms(name: str) -> None:
    """Of 50 rollouts of 300 s at each share; the promise is one of 1,000."""
    rng = np.random.default_rng(3)
    found = [
        sum(alarm(rng, 300, rates, LOADS.get(name, only_replica)) < math.inf for _ in range(50))
        for rates in SHARES
    ]
    print(f"\n| {name} | {' | '.join(map(str, found))} |")
    if name not in ("all of these", "the only replica is slow"):  # while it is slow, so is its version
        assert sum(found) <= 1, found


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("slower", "tail"), [(3.0, 1.0), (2.0, 1.0), (1.5, 1.0), (1.0, 10.0)])
def test_how_soon_a_slow_candidate_is_found(slower: float, tail: float) -> None:
    """Of 40 rollouts of 600 s at each share, under a load that changes and bursts."""
    rng = np.random.default_rng(4)

    def load(rng: np.random.Generator, seconds: int) -> Factors:
        return doubles(rng, seconds) * bursts(rng, seconds)

    cells = []
    for rates in SHARES:
        found = [alarm(rng, 600, rates, load, slower, tail) for _ in range(40)]
        cells.append(f"{np.median(found):.0f} s ({np.quantile(found, 0.9, method='lower'):.0f} s)")
        if slower >= 2 and rates[0] > 2:
            assert np.median(found) < 300, found
    print(f"\n| {slower:g} times, one of ten {tail:g} times | {' | '.join(cells)} |")
