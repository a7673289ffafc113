"""The limit on a rate, under a clock of the test."""

from hypothesis import given
from hypothesis import strategies as st

from app.access.limits import RateLimiter
from app.access.tokens import Rate


def test_as_many_as_the_rate_come_at_once_and_then_evenly() -> None:
    limiter = RateLimiter(Rate(4, 2.0))
    assert [limiter.wait(10.0) for _ in range(5)] == [0, 0, 0, 0, 0.5]
    assert limiter.wait(10.25) == 0.25, "one that was refused does not count"
    assert [limiter.wait(10.5), limiter.wait(10.5)] == [0, 0.5]


def test_nothing_is_saved_up_beyond_one_period() -> None:
    limiter = RateLimiter(Rate(3, 60.0))
    assert limiter.wait(0.0) == 0
    assert [limiter.wait(9999.0) for _ in range(4)] == [0, 0, 0, 20]


def test_one_in_a_period_comes_once_in_it() -> None:
    limiter = RateLimiter(Rate(1, 3600.0))
    assert [limiter.wait(now) for now in (0.0, 1800.0, 3600.0)] == [0, 1800, 0]


@given(
    st.integers(1, 50),
    st.sampled_from([1.0, 60.0, 3600.0]),
    st.lists(st.floats(0, 3, allow_nan=False), min_size=1, max_size=200),
)
def test_no_period_has_more_than_twice_the_rate(count: int, period: float, steps: list[float]) -> None:
    limiter, now, passed = RateLimiter(Rate(count, period)), 0.0, []
    for step in steps:
        now += step * period / count
        if not (wait := limiter.wait(now)):
            passed.append(now)
        else:
            assert 0 < wait <= period / count * 1.001, "the next one is never further away than the pace"
    for start in passed:
        assert sum(start <= at < start + period for at in passed) <= 2 * count
