"""Tails of our own, beside scipy's values."""

import pytest

from app.core.drift.chi_squared import noncentral_tail, poisson_tail


@pytest.mark.parametrize(
    ("x", "degrees", "noncentrality", "tail"),
    [
        # scipy.stats.ncx2.sf, chi2.sf where nothing is shifted
        (3.0, 1, 0.0, 0.08326451666355042),
        (0.5, 2, 0.0, 0.7788007830714049),
        (30.0, 15, 0.0, 0.011921495938159686),
        (3.0, 2, 0.5, 0.30409396995648613),
        (16.0, 15, 3.0, 0.5796040288574525),
        (40.0, 15, 20.0, 0.293532655315805),
        (25.0, 1, 3.0, 0.0005416490620425386),
        (80.0, 63, 20.0, 0.5618529764010636),
        (400.0, 15, 300.0, 0.010622906003633843),
        (4300.0, 15, 4000.0, 0.013204724781144175),
    ],
)
def test_a_tail_is_that_of_scipy(x: float, degrees: int, noncentrality: float, tail: float) -> None:
    assert noncentral_tail(x, degrees, noncentrality) == pytest.approx(tail, rel=1e-9)


def test_tails_have_bounds() -> None:
    assert noncentral_tail(0.0, 15, 3.0) == 1.0
    assert noncentral_tail(1e6, 15, 3.0) == 0.0


@pytest.mark.parametrize(
    ("count", "mean", "tail"),
    [(3, 0.5, 0.014387677966970684), (12, 3.5, 0.0002889922199303002), (400, 300.0, 2.2066520142884493e-08)],
)
def test_a_poisson_tail_is_that_of_scipy(count: int, mean: float, tail: float) -> None:
    assert poisson_tail(count, mean) == pytest.approx(tail, rel=1e-9)


def test_fewer_than_expected_are_no_evidence() -> None:
    assert poisson_tail(3, 2.5) == 1.0
    assert poisson_tail(0, 0.0) == 1.0
