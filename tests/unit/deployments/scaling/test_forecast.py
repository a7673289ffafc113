"""Forecasts on simulated loads of weeks: what they add to a policy that only follows the load."""

import math
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from deployments.scaling.forecast import (
    DAY,
    SLOT_S,
    Expectation,
    Forecaster,
    Score,
    seasonal_median,
    wanted,
)

Load = npt.NDArray[np.float64]
TARGET: Final = 0.7
AHEAD: Final = 2
LEARNT: Final = 9
"""Days after which the policies are compared."""
SPIKE: Final = slice(108, 114)
"""Half an hour from nine on."""


def daily(days: int, seed: int = 0) -> Load:
    """A load with a wave each day, less of it at weekends, and noise of 8 %."""
    day = np.arange(days * DAY) / DAY
    wave = 4 + 3 * np.sin(2 * np.pi * (day - 0.3))
    week = np.where(day.astype(int) % 7 >= 5, 0.6, 1.0)
    return np.asarray(wave * week * np.exp(np.random.default_rng(seed).normal(0, 0.08, len(day))))


def with_spike(load: Load) -> Load:
    load.reshape(-1, DAY)[:, SPIKE] += 8
    return load


class Outcome(NamedTuple):
    """Of the days after `LEARNT`: slots with too few replicas, replicas by slot, and the last expectation."""

    short: int
    replicas: list[int]
    expectation: Expectation


def follow(load: Load, forecast: bool, most: int = 100) -> Outcome:
    """Follow a load, slot by slot: as many replicas as the slot before needed, or as are expected."""
    forecaster, present, short, replicas = Forecaster(), 1, 0, []
    for slot, need in enumerate(load):
        needed = min(math.ceil(load[max(slot - 1, 0)] / TARGET), most)
        forecaster.observe(float(need), slot * SLOT_S + 1, AHEAD)  # ends the slot before
        expected = min(wanted(forecaster.expectation, TARGET), most) if forecast else 0
        present = max(needed, min(expected, 2 * present))
        forecaster.asks(present if present > needed else 0)
        if slot >= LEARNT * DAY:
            short += need > present
            replicas.append(present)
    return Outcome(short, replicas, forecaster.expectation)


def test_a_spike_of_each_day_finds_replicas_that_are_ready() -> None:
    load = with_spike(daily(20))
    without, with_it = follow(load, forecast=False), follow(load, forecast=True)
    assert without.short >= 20 - LEARNT, "each spike comes as a surprise"
    assert with_it.short <= max(0.1 * without.short, 1)
    assert sum(with_it.replicas) <= 1.12 * sum(without.replicas)
    score = with_it.expectation.score
    assert score is not None and score.forecast < 0.8 * score.last_value


def broken() -> Load:
    load = with_spike(daily(12))
    load[10 * DAY :] = 2.0
    return load


def outlier() -> Load:
    load = daily(11)
    load[9 * DAY + 100] *= 100
    return load


def missing_day() -> Load:
    load = with_spike(daily(11))
    load[9 * DAY : 10 * DAY] = 0.0
    return load


@pytest.mark.parametrize("load", [broken(), outlier(), missing_day()])
def test_there_are_never_fewer_replicas_than_the_load_asks_for_nor_more_than_may_be(load: Load) -> None:
    without, with_it = follow(load, forecast=False, most=16), follow(load, forecast=True, most=16)
    assert all(a <= b <= 16 for a, b in zip(without.replicas, with_it.replicas, strict=True))
    assert with_it.short <= without.short
    assert sum(with_it.replicas) <= 1.3 * sum(without.replicas)


def test_an_outlier_is_not_expected_again() -> None:
    load = outlier()[: 10 * DAY + 99]
    expected = seasonal_median(load.astype(np.float32), AHEAD)
    assert expected is not None and expected.max() < 2 * load[9 * DAY + 99]


def test_nothing_is_expected_before_a_day_is_known() -> None:
    short = follow(daily(1), forecast=True).expectation
    assert (short.need, wanted(short, TARGET)) == (None, 0)
    assert short.why_not == "there is less than a day of it"


def test_a_forecast_that_is_no_better_than_the_last_value_is_not_acted_on() -> None:
    random = np.random.default_rng(1)
    walk = 10 * np.exp(np.cumsum(random.normal(0, 0.02, 6 * DAY)))
    found = follow(walk, forecast=True).expectation
    assert found.need is not None and found.score is not None and not found.score.trusted
    assert found.why_not.startswith("its error, ") and wanted(found, TARGET) == 0


def test_replicas_that_nothing_used_are_not_asked_for_at_that_time_for_a_week() -> None:
    load = with_spike(daily(11))
    forecaster = Forecaster()
    for slot in range(9 * DAY + SPIKE.start):
        forecaster.observe(float(load[slot]), slot * SLOT_S, AHEAD)
    asked = wanted(forecaster.expectation, TARGET)
    assert asked > 10
    forecaster.asks(asked)
    for slot in range(9 * DAY + SPIKE.start, 9 * DAY + SPIKE.stop):  # no spike today
        forecaster.observe(0.1, slot * SLOT_S, AHEAD)
    assert forecaster.history("m", 0.0).distrusted[SPIKE.start] > 16 * DAY
    for slot in range(9 * DAY + SPIKE.stop, 10 * DAY + SPIKE.start):
        forecaster.observe(float(load[slot]), slot * SLOT_S, AHEAD)
    assert (
        forecaster.expectation.why_not == "replicas that it asked for at this time of the day were not used"
    )


def test_what_is_known_outlives_the_manager() -> None:
    load = with_spike(daily(9))
    before = Forecaster()
    for slot, need in enumerate(load):
        before.observe(float(need), slot * SLOT_S, AHEAD)
    after = Forecaster(before.history("m", 1.0))
    for each in (before, after):  # the slot that was under way is lost, and one more passes
        each.observe(1.0, (len(load) + 1) * SLOT_S, AHEAD)
        each.observe(1.0, (len(load) + 2) * SLOT_S, AHEAD)
    assert after.expectation.need == pytest.approx(before.expectation.need, rel=0.1)


def test_a_clock_that_was_set_forgets_what_would_not_fit() -> None:
    forecaster = Forecaster()
    for slot in (5 * DAY, 5 * DAY + 1, 3, 4):
        forecaster.observe(1.0, slot * SLOT_S, AHEAD)
    assert forecaster.history("m", 0.0).last == 3


def test_a_score_tells_whether_it_is_trusted() -> None:
    assert Score(0.1, 0.2).trusted
    assert not Score(0.2, 0.2).trusted
