import numpy as np
import pytest

from app.core.rollout.outcomes import LATENCY_RATIO
from app.core.rollout.statistics import (
    count_above,
    microseconds,
    position,
    quantile_interval,
    quantile_position,
    wilson,
)


@pytest.mark.parametrize(
    ("count", "total", "bounds"),
    [(0, 0, (0.0, 1.0)), (0, 20, (0.0, 0.161)), (5, 20, (0.112, 0.469)), (20, 20, (0.839, 1.0))],
)
def test_wilson_gives_the_interval_of_the_literature(
    count: int, total: int, bounds: tuple[float, float]
) -> None:
    """The figures are those of R's prop.test without continuity correction."""
    assert wilson(count, total) == pytest.approx(bounds, abs=0.001)


def test_quantile_is_between_the_bounds_of_its_bucket() -> None:
    assert quantile_position({10: 50, 20: 50}, 0.25) == pytest.approx(9.5)
    assert quantile_position({10: 50, 20: 50}, 0.5) == 10
    assert quantile_position({10: 50, 20: 50}, 1.0) == 20


def test_count_above_takes_the_part_of_a_bucket() -> None:
    assert count_above({10: 8, 11: 4, 12: 2}, 10.25) == pytest.approx(4 * 0.75 + 2)
    assert count_above({10: 8}, 10) == 0


def test_interval_has_the_quantile_in_19_of_20_samples() -> None:
    rng = np.random.default_rng(5)
    true = float(np.exp(7 + 0.5 * 1.6449))  # the 95 % quantile of this lognormal distribution
    hits = 0
    for _ in range(300):
        buckets = np.ceil(np.log(rng.lognormal(7, 0.5, 500)) / np.log(LATENCY_RATIO)).astype(int)
        _, low, high = quantile_interval(dict(enumerate(np.bincount(buckets).tolist())), 0.95)
        hits += low <= true <= high
    assert hits >= 276


def test_position_is_the_inverse_of_microseconds() -> None:
    assert microseconds(40) == pytest.approx(LATENCY_RATIO**40) == pytest.approx(1024)
    assert microseconds(position(1234.0)) == pytest.approx(1234)
