"""The histograms of request durations that are always kept."""

import time
from bisect import bisect_left
from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from app.core.observability.durations import BOUNDS_S, FINE_S, MANY
from app.core.observability.latencies import Histogram
from app.core.observability.statistics import Duration, Statistics, merge

MS = 1_000_000


def recorded(*requests: tuple[int, int]) -> Statistics:
    statistics = Statistics()
    for total_ns, queue_ns in requests:
        statistics.record_success(total_ns, queue_ns)
    return statistics


def counted(*seconds: float) -> list[int]:
    """Count one by one, the slow way."""
    counts = [0] * (len(BOUNDS_S) + 1)
    for each in seconds:
        counts[bisect_left(BOUNDS_S, each)] += 1
    return counts


def test_nothing_without_a_request() -> None:
    assert Statistics().report().durations == {}


def test_a_duration_is_split_by_its_queue() -> None:
    found = recorded((30 * MS, 10 * MS)).report().durations
    assert found == {
        "request": Histogram(BOUNDS_S, counted(0.03), 0.03),
        "queue": Histogram(BOUNDS_S, counted(0.01), 0.01),
        "compute": Histogram(BOUNDS_S, counted(0.02), 0.02),
    }


@given(st.lists(st.integers(0, 100_000_000_000)))
def test_every_duration_is_in_its_bucket(durations: list[int]) -> None:
    found = recorded(*((ns, 0) for ns in durations)).report()
    assert found.success == Duration(len(durations), sum(durations))
    if durations:
        assert found.durations["request"].counts == counted(*(ns / 1e9 for ns in durations))


def test_a_percentile_is_off_by_half_a_bucket() -> None:
    """Whatever took 10 ms is told as 10 ms, not as the middle of 10 to 25."""
    ratios = [high / low for low, high in pairwise(FINE_S)]
    assert set(BOUNDS_S) < set(FINE_S) and list(FINE_S) == sorted(FINE_S) and max(ratios) < 1.11


@given(st.lists(st.integers(0, 100_000_000_000), min_size=1), st.lists(st.integers(0, 100_000_000_000)))
def test_fine_buckets_add_up_over_replicas(one: list[int], other: list[int]) -> None:
    found = merge([recorded(*((ns, 0) for ns in each)).report() for each in (one, other)])
    expected = Counter(bisect_left(FINE_S, ns / 1e9) for ns in one + other)
    assert found.fine_durations == expected


def test_bounds_belong_to_their_buckets() -> None:
    found = recorded(*((round(bound * 1e9), 0) for bound in BOUNDS_S)).report().durations
    assert found["request"].counts == [1] * len(BOUNDS_S) + [0]


def test_many_requests_are_sorted_without_a_report() -> None:
    statistics = recorded(*[(MS, 0)] * (MANY // 2 - 1))
    assert (statistics.counters.success.count, statistics.succeeded) == (0, MANY // 2 - 1)
    statistics.record_success(MS, 0)
    assert statistics.counters.success.count == statistics.succeeded == MANY // 2


def test_requests_after_a_report_are_counted_once() -> None:
    statistics = recorded((MS, 0))
    statistics.report()
    statistics.record_success(MS, 0)
    found = statistics.report()
    assert (found.success.count, found.durations["request"].counts) == (2, counted(0.001, 0.001))


def test_histograms_of_replicas_add_up() -> None:
    found = merge([recorded((MS, 0)).report(), Statistics().report(), recorded((2 * MS, 0)).report()])
    assert found.durations["request"] == Histogram(BOUNDS_S, counted(0.001, 0.002), 0.003)
    assert time.monotonic_ns() < 1 << 63, "what an array of durations holds"
