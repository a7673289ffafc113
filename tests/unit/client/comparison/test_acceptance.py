"""Upper bounds of shares, beside scipy's and published figures."""

import pytest
from scipy import stats

from nereid_client.comparison.acceptance import MOST_ROWS, accept, at_most, rows_needed, upper_bound


@pytest.mark.parametrize(("confidence", "rows"), [(0.99, 919), (0.999, 1379), (0.95, 598)])
def test_rows_without_a_bad_one_that_show_a_share_of_99_5_percent(confidence: float, rows: int) -> None:
    assert rows_needed(0, 0.005, confidence) == rows


@pytest.mark.parametrize("confidence", [0.9, 0.99, 0.999])
@pytest.mark.parametrize(
    ("bad", "total"),
    [(0, 1), (0, 919), (1, 10), (7, 2000), (400, 2000), (1999, 2000), (60, 100_000), (400_000, 1_000_000)],
)
def test_the_bound_is_that_of_clopper_and_pearson(bad: int, total: int, confidence: float) -> None:
    expected = stats.beta.ppf(confidence, bad + 1, total - bad)
    assert upper_bound(bad, total, confidence) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("bad", "total", "share"),
    [(0, 10, 0.1), (3, 2000, 0.005), (900, 1000, 0.95), (10, 10, 0.5), (9000, 10_000, 0.01)],
)
def test_the_probability_of_few_bad_rows_is_the_binomial_one(bad: int, total: int, share: float) -> None:
    assert at_most(bad, total, share) == pytest.approx(stats.binom.cdf(bad, total, share), rel=1e-9)


@pytest.mark.parametrize("bad", [0, 1, 5, 37])
def test_one_row_less_than_needed_shows_too_little(bad: int) -> None:
    needed = rows_needed(bad, 0.01, 0.99)
    assert upper_bound(bad, needed, 0.99) <= 0.01 < upper_bound(bad, needed - 1, 0.99)


def test_without_rows_nothing_is_shown() -> None:
    found = accept(0, 0, 0.01)
    assert (found.bound, found.accepted, found.missing) == (1.0, False, 459)
    assert rows_needed(0, 0.0, 0.99) == MOST_ROWS


def test_a_verdict_is_said_in_words() -> None:
    assert str(accept(0, 919, 0.005)) == (
        "0 of 919 rows, at most 0.50% with a confidence of 0.99; allowed are 0.5 %"
    )
    assert str(accept(2, 300, 0.01)) == (
        "inconclusive: 2 of 300 rows, at most 2.77% with a confidence of 0.99; allowed are 1 %, "
        "which 538 more rows without one would show"
    )
    assert "which no number of rows without one" in str(accept(0, 10, 0.0))
