"""Quantiles of values that are counted by bucket."""

import pytest

from app.core.observability.quantiles import quantile


@pytest.mark.parametrize(
    ("share", "bucket", "part"),
    [(0.0, 1, 0.0), (0.25, 1, 0.5), (0.5, 1, 1.0), (0.75, 4, 0.5), (1.0, 4, 1.0)],
)
def test_a_share_ends_in_a_part_of_a_bucket(share: float, bucket: int, part: float) -> None:
    assert quantile({4: 10, 1: 10, 3: 0, 0: 0}, share) == (bucket, part)


def test_what_rounding_leaves_is_in_the_last_bucket() -> None:
    counts = dict.fromkeys(range(49), 7)
    assert quantile(counts, 1.0 + 1e-9) == (48, 1.0)


@pytest.mark.parametrize("counts", [{}, {3: 0}])
def test_of_nothing_there_is_none(counts: dict[int, int]) -> None:
    assert quantile(counts, 0.5) is None
