"""What a new version saves, on minutes that are simulated: what is claimed must be so often enough."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from app.core.cost.minutes import MinuteUse
from app.core.rollout.saving import MIN_MINUTES, Saving, saving

RUNS = 200
IDLE_S = 0.3
"""Processor time of a minute that does not grow with the load."""
ROW_S = 0.004


def minutes(
    random: np.random.Generator, number: int, factor: float = 1.0, hour: float = 0.0, lasting: float = 0.0
) -> list[MinuteUse]:
    """Return the minutes of a version.

    Args:
        random: source of noise.
        number: how many.
        factor: its processor time, beside that of the version before.
        hour: of the day, at which they begin: the load is another at night.
        lasting: how much of a disturbance is left in the next minute.
    """
    at = np.arange(number) + 60 * hour
    swing = np.exp(_noise(random, number, 0.3, 0.9))
    rows = random.poisson(600 * (1 + 0.4 * np.sin(2 * np.pi * at / 1440)) * swing)
    seconds = factor * (IDLE_S + ROW_S * rows * np.exp(_noise(random, number, 0.1, lasting)))
    return [MinuteUse(i, float(s), int(r)) for i, (s, r) in enumerate(zip(seconds, rows, strict=True))]


def _noise(random: np.random.Generator, number: int, deviation: float, lasting: float) -> Any:
    fresh = random.normal(0, deviation * (1 - lasting**2) ** 0.5, number)
    fresh[0] = random.normal(0, deviation)
    for i in range(1, number):
        fresh[i] += lasting * fresh[i - 1]
    return fresh


def runs(factor: float, lasting: float, number: int = 60) -> list[Saving]:
    random = np.random.default_rng(7)
    pairs = (
        (minutes(random, 2 * number, 1.0, 8.0, lasting), minutes(random, number, factor, 10.0, lasting))
        for _ in range(RUNS)
    )
    found = [saving(before, since, 1000, seed) for seed, (before, since) in enumerate(pairs)]
    judged = [each for each in found if each.share is not None]
    assert len(judged) > RUNS / 4
    return judged


def share_of(found: list[Saving], holds: Callable[[Saving], bool]) -> float:
    return sum(map(holds, found)) / len(found)


CASES = pytest.mark.parametrize(
    ("lasting", "number", "least"),
    [
        *((lasting, number, 0.95) for lasting in (0.0, 0.5) for number in (MIN_MINUTES + 5, 60)),
        (0.8, 60, 0.95),
        (0.8, MIN_MINUTES + 5, 0.9),  # what disturbs lasts as long as a block of so few minutes
    ],
)


@CASES
def test_equal_versions_show_no_saving_in_19_of_20(lasting: float, number: int, least: float) -> None:
    found = runs(1.0, lasting, number)
    assert share_of(found, lambda each: not each.shown and not each.worse) >= least


@CASES
def test_half_the_processor_time_lies_in_the_interval(lasting: float, number: int, least: float) -> None:
    found = runs(0.5, lasting, number)

    def contains(each: Saving) -> bool:
        return each.share is not None and each.share.low <= 0.5 <= each.share.high

    assert share_of(found, contains) >= least
    assert share_of(found, lambda each: each.shown) >= 0.95


def test_more_processor_time_is_no_saving() -> None:
    assert share_of(runs(1.3, 0.5), lambda each: each.worse) >= 0.95


def test_another_load_is_no_saving() -> None:
    """At night each row takes more time, because what does not grow with the load stays."""
    random = np.random.default_rng(3)
    found = [
        saving(minutes(random, 360, hour=18.0), minutes(random, 60, hour=5.5), 1000, seed)
        for seed in range(100)
    ]
    judged = [each for each in found if each.share is not None]
    assert len(judged) > 50
    assert share_of(judged, lambda each: each.shown) <= 0.05


def test_the_saving_is_that_of_all_rows_since_the_promotion() -> None:
    random = np.random.default_rng(5)
    found = saving(minutes(random, 360), minutes(random, 360, 0.5), 1_000_000)
    assert found.share is not None and found.core_seconds is not None
    a_row = ROW_S + IDLE_S / 600
    assert found.stable_ms == pytest.approx(1000 * a_row, rel=0.1)
    assert found.new_ms == pytest.approx(500 * a_row, rel=0.1)
    assert found.core_seconds.value == pytest.approx(0.5 * a_row * 1e6, rel=0.1)
    assert found.core_seconds.low < found.core_seconds.value < found.core_seconds.high
    assert (found.minutes, found.stable_minutes, found.rows) == (360, 360, 1_000_000)


def test_the_same_minutes_give_the_same_answer() -> None:
    random = np.random.default_rng(5)
    before, since = minutes(random, 60), minutes(random, 60)
    assert saving(before, since, 9) == saving(before, since, 9)


def test_too_few_minutes_are_said() -> None:
    random = np.random.default_rng(5)
    enough = minutes(random, MIN_MINUTES)
    few = enough[1:]
    assert saving(few, enough, 9).waiting == "14 of 15 minutes with requests before the promotion"
    assert saving(enough, few, 9).waiting.startswith("14 of 15 minutes since the promotion at ")
    assert saving([], [], 0).waiting == "0 of 15 minutes with requests before the promotion"
    assert saving(enough, enough, 9).waiting == ""


def test_minutes_without_requests_do_not_count() -> None:
    random = np.random.default_rng(5)
    idle = [MinuteUse(i, 0.01, 0) for i in range(100)]
    found = saving([*idle, *minutes(random, 29)], minutes(random, 60), 9)
    assert found.stable_minutes == 29


def test_minutes_at_a_load_that_was_never_there_do_not_count() -> None:
    random = np.random.default_rng(5)
    loaded = [MinuteUse(each.minute, each.cpu_seconds, 20 * each.rows) for each in minutes(random, 60)]
    found = saving(minutes(random, 60), loaded, 9)
    assert (found.share, found.minutes) == (None, 0)


def test_a_constant_load_has_no_slope() -> None:
    steady = [MinuteUse(i, 2.0 + 0.01 * (i % 3), 500) for i in range(60)]
    half = [MinuteUse(i, 1.0 + 0.005 * (i % 3), 500) for i in range(60)]
    found = saving(steady, half, 100).share
    assert found is not None
    assert found.low <= 0.5 <= found.high and found.high - found.low < 0.05
