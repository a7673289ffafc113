"""Rates, percentiles and means out of counters."""

import pytest

from app.console.figures import Counters, Figures, Recent, between, quantile

BOUNDS = (0.001, 0.01, 0.1)


def test_figures_are_differences() -> None:
    first = Counters(0.0, buckets=(0, 0, 0, 0))
    last = Counters(9.0, ok=90, request_ns=1, queue_ns=0, compute_ns=0, buckets=(90, 0, 0, 0))
    now = Counters(10.0, 98, 4, 0, 98_000_000, 196_000_000, 196, 49, 3, 0, (98, 0, 0, 0))
    figures = between(first, last, now, BOUNDS)
    assert (figures.rate, figures.errors, figures.pending) == (12.0, 4.0, 3)
    assert (figures.queue_ms, figures.compute_ms, figures.batch) == (1.0, 2.0, 4.0)
    assert figures.p50_ms == pytest.approx(0.5)


def test_nothing_answered_has_no_percentile() -> None:
    assert between(Counters(0.0), Counters(0.0), Counters(1.0), BOUNDS) == Figures()


def test_quantile_lies_within_its_bucket_and_below_the_last_bound() -> None:
    assert quantile(BOUNDS, (50, 50, 0, 0), 0.75) == pytest.approx(5.5)
    assert quantile(BOUNDS, (0, 0, 0, 10), 0.5) == pytest.approx(100)
    assert quantile(BOUNDS, (0, 0, 0, 0), 0.5) is None


def test_counters_of_a_version_loaded_anew_begin_from_zero() -> None:
    recent = Recent()
    recent.add(Counters(1.0, ok=100))
    assert recent.figures(BOUNDS) == Figures()  # over which time is not known
    recent.add(Counters(2.0, ok=110))
    assert recent.figures(BOUNDS).rate == 10
    recent.add(Counters(3.0, ok=2))
    assert recent.figures(BOUNDS).rate == 0


def test_percentiles_are_of_the_last_seconds() -> None:
    recent = Recent()
    for second in range(40):
        slow = (0, 0, second, 0) if second < 10 else (0, 0, 10, 0)
        recent.add(Counters(float(second), ok=second, buckets=(max(0, second - 10), 0, slow[2], 0)))
    assert recent.figures(BOUNDS).p99_ms == pytest.approx(0.99)
    assert sum(recent.answered()) == 1
