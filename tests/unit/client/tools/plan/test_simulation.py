"""Replicas of a model as they are simulated, beside what theory and arithmetic say."""

import numpy as np
import pytest

from nereid_client.tools.plan.arrivals import by_chance
from nereid_client.tools.plan.simulation import Replica, latencies

SINGLE = Replica([0.0, 0.010], batch=0)
BATCHES = Replica([0.0, *(0.010 + 0.001 * rows for rows in range(1, 9))], batch=8, instances=2)


def test_mean_of_one_replica_is_that_of_theory() -> None:
    """The mean wait with fixed service times: load * time / 2 / (1 - load)."""
    times, rows, _ = by_chance(60, 40_000, seed=3)
    found = latencies(SINGLE, 1, times, rows)
    assert found.mean() == pytest.approx(0.010 + 0.6 * 0.010 / 2 / 0.4, rel=0.05)


def test_requests_go_to_the_replica_with_the_fewest_in_flight() -> None:
    assert latencies(SINGLE, 2, [0.0, 0.0, 0.0], [1, 1, 1]).tolist() == pytest.approx([0.01, 0.01, 0.02])
    assert latencies(SINGLE, 3, [0.0, 0.0, 0.0], [1, 1, 1]).tolist() == pytest.approx([0.01] * 3)


def test_a_batch_is_executed_when_it_is_full_or_has_waited() -> None:
    waiting = BATCHES._replace(delay_s=0.005, outside_s=0.001)
    assert latencies(waiting, 1, [0.0], [1]).tolist() == pytest.approx([0.005 + 0.011 + 0.001])
    full = latencies(waiting, 1, [0.0, 0.001], [4, 4])
    assert full.tolist() == pytest.approx([0.001 + 0.018 + 0.001, 0.018 + 0.001])
    third = latencies(waiting, 1, [0.0, 0.0, 0.0], [5, 5, 3])
    assert third.tolist() == pytest.approx([0.015 + 0.001, 0.018 + 0.001, 0.018 + 0.001]), (
        "5 and 5 do not fit"
    )


def test_capacity_is_what_full_batches_allow() -> None:
    assert SINGLE.capacity(1) == pytest.approx(100)
    assert BATCHES.capacity(1) == pytest.approx(2 * 8 / 0.018)
    assert BATCHES.capacity(4) == pytest.approx(2 * 2 / 0.018)
    assert SINGLE.scaled(2.0).capacity(1) == pytest.approx(50)


def test_near_the_capacity_batches_are_full() -> None:
    times, rows, _ = by_chance(0.9 * BATCHES.capacity(1), 20_000)
    found = latencies(BATCHES, 1, times, rows)
    assert 0.018 < np.median(found) < 0.06
