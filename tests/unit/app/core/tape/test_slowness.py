"""Which requests are slow."""

import random

import pytest

from app.core.tape.slowness import slowness
from app.core.tape.spec import SlowRule


def test_nothing_is_slow_without_a_rule() -> None:
    assert slowness(None) is None


def test_a_limit_in_milliseconds() -> None:
    is_slow = slowness(SlowRule(above_ms=50))
    assert is_slow is not None
    assert [is_slow(ms * 1_000_000) for ms in (1, 50, 51)] == [False, False, True]


@pytest.mark.parametrize("quantile", [0.9, 0.99, 0.999])
def test_a_quantile_is_followed_wherever_durations_go(quantile: float) -> None:
    is_slow = slowness(SlowRule(quantile=quantile))
    assert is_slow is not None
    chance = random.Random(1)
    for scale in (1e6, 2e7, 5e5):
        for _ in range(round(100 / (1 - quantile))):  # it gets there
            is_slow(int(chance.lognormvariate(0, 0.5) * scale))
        share = sum(is_slow(int(chance.lognormvariate(0, 0.5) * scale)) for _ in range(50_000)) / 50_000
        assert share == pytest.approx(1 - quantile, rel=0.25)


def test_the_first_requests_are_not_slow() -> None:
    is_slow = slowness(SlowRule(quantile=0.99))
    assert is_slow is not None
    assert not any(is_slow(duration) for duration in range(1, 200))
