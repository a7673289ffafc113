"""Rates, percentiles and means out of counters."""

import pytest

from app.console.figures import Figures, Recent, between, quantile_ms
from app.core.observability.counters import VersionCounters

BOUNDS = (0.001, 0.01, 0.1)


def test_figures_are_differences() -> None:
    first = VersionCounters(0.0, buckets={})
    last = VersionCounters(9.0, ok=90, queue_ns=0, compute_ns=0, buckets={0: 90})
    now = VersionCounters(10.0, 98, 4, 98_000_000, 196_000_000, 196, 49, 3, buckets={0: 98})
    figures = between(first, last, now, BOUNDS)
    assert (figures.rate, figures.errors, figures.pending) == (12.0, 4.0, 3)
    assert (figures.queue_ms, figures.compute_ms, figures.batch) == (1.0, 2.0, 4.0)
    assert figures.p50_ms == pytest.approx(0.5)


def test_nothing_answered_has_no_percentile() -> None:
    assert between(VersionCounters(0.0), VersionCounters(0.0), VersionCounters(1.0), BOUNDS) == Figures()


def test_quantile_lies_within_its_bucket_and_below_the_last_bound() -> None:
    assert quantile_ms(BOUNDS, {0: 50, 1: 50}, 0.75) == pytest.approx(5.5)
    assert quantile_ms(BOUNDS, {3: 10}, 0.5) == pytest.approx(100)
    assert quantile_ms(BOUNDS, {}, 0.5) is None


def test_counters_of_a_version_loaded_anew_begin_from_zero() -> None:
    recent = Recent()
    recent.add(VersionCounters(1.0, ok=100))
    assert recent.figures(BOUNDS) == Figures()  # over which time is not known
    recent.add(VersionCounters(2.0, ok=110))
    assert recent.figures(BOUNDS).rate == 10
    recent.add(VersionCounters(3.0, ok=2))
    assert recent.figures(BOUNDS).rate == 0


def test_percentiles_are_of_the_last_seconds() -> None:
    recent = Recent()
    for second in range(40):
        slow = min(second, 10)
        recent.add(VersionCounters(float(second), ok=second, buckets={0: max(0, second - 10), 2: slow}))
    assert recent.figures(BOUNDS).p99_ms == pytest.approx(0.99)
    assert recent.answered().total() == 1
