"""How many replicas are enough, for traffic by chance and as a tape has it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from nereid_client.tools.perf.slo import read_rules
from nereid_client.tools.plan.arrivals import Traffic, by_chance, recorded, resampled
from nereid_client.tools.plan.choice import outcome, outcomes
from nereid_client.tools.plan.simulation import Replica

SINGLE = Replica([0.0, 0.010], batch=0)
RULES = read_rules("p99<40ms")


def test_the_first_number_that_keeps_the_objective_is_the_last_that_is_tried() -> None:
    tried = list(outcomes(SINGLE, by_chance(50, 20_000), 500, RULES))
    assert [each.replicas for each in tried] == list(range(6, 6 + len(tried)))
    assert tried[-1].enough and not any(each.enough for each in tried[:-1])
    assert tried[-1].p99_ms < 40 and tried[-1].interval_ms[0] <= tried[-1].p99_ms <= tried[-1].interval_ms[1]
    assert len(tried) <= 3 and 0.6 < tried[-1].load < 0.95


def test_bursts_need_more_replicas_than_chance_at_the_same_rate() -> None:
    times = np.concatenate([np.arange(40) * 1e-4 + second for second in range(2000)])
    bursts = Traffic(times, np.ones(len(times), int), 40.0)
    rates = {}
    for name, traffic in (("bursts", bursts), ("chance", by_chance(40, 20_000))):
        rates[name] = list(outcomes(SINGLE, traffic, 400, RULES))[-1].replicas
    assert rates["bursts"] > rates["chance"]


def test_where_single_requests_take_too_long_no_number_is_told() -> None:
    tried = list(outcomes(SINGLE, by_chance(50, 20_000), 500, read_rules("p99<9ms")))
    assert not tried[-1].enough and len(tried) < 8


def test_factor_of_the_latency_and_the_load_beyond_capacity() -> None:
    traffic = by_chance(50, 20_000)
    plain, later = (outcome(SINGLE, 2, traffic, 100, RULES, factor) for factor in (1.0, 1.5))
    assert later.p99_ms == pytest.approx(1.5 * plain.p99_ms)
    over = outcome(SINGLE, 1, traffic, 100, RULES)
    assert over.load == pytest.approx(1.0) and over.p99_ms == float("inf") and not over.enough


def test_drawn_stretches_have_the_rate_and_the_rows_of_the_traffic() -> None:
    random = np.random.default_rng(1)
    traffic = Traffic(np.sort(random.uniform(0, 3000, 30_000)), random.integers(1, 5, 30_000), 10.0)
    times, rows = resampled(traffic, 250, 3000, seed=7)
    assert len(times) == len(rows) == 3000 and times[-1] == pytest.approx(12.0, rel=0.05)
    assert np.all(np.diff(times) >= 0) and rows.mean() == pytest.approx(2.5, abs=0.1)
    assert not np.array_equal(times, resampled(traffic, 250, 3000, seed=8)[0])


def test_stretches_stay_as_busy_beside_the_others_as_they_were() -> None:
    gaps = np.concatenate(
        [np.full(3000, 0.5), np.full(27_000, 0.05)]
    )  # a calm and a busy time of 1500 and 1350 s
    traffic = Traffic(np.cumsum(gaps), np.ones(30_000, int), 30_000 / gaps.sum())
    rates = [3000 / resampled(traffic, traffic.rate, 3000, seed)[0][-1] for seed in range(20)]
    assert max(rates) == pytest.approx(20, rel=0.01) and min(rates) < 15


@dataclass
class Recorded:
    """A row of a tape, as far as a plan reads it."""

    arrived_ns: int
    rows: int
    probability: float

    @property
    def inputs(self) -> Any:
        return [type("Input", (), {"shape": (self.rows, 4)})]


def test_traffic_of_a_tape_counts_what_was_not_recorded() -> None:
    found: Any = [Recorded(int(1e9 * second), 1 + second % 3, 0.1) for second in range(100)]
    traffic = recorded(found, batched=True)
    assert traffic.rate == pytest.approx(1000 / 99)
    assert traffic.rows.tolist()[:4] == [1, 2, 3, 1] and traffic.times[-1] == 99
    assert set(recorded(found, batched=False).rows) == {1}
    with pytest.raises(ValueError, match="fewer than two requests of this model"):
        recorded(found[:1], batched=True)
