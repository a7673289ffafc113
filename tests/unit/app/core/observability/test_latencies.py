"""Summaries of durations in one process."""

import math
import random

import pytest

from app.core.observability.latencies import Summary, SummaryRecorder


def summary(*us: int) -> Summary:
    recorder = SummaryRecorder()
    for each in us:
        recorder.record(each * 1000)
    return recorder.report()


def test_quantiles_are_close_to_the_true_ones() -> None:
    numbers = [int(random.Random(i).expovariate(1 / 5000)) + 1 for i in range(5000)]
    found = summary(*numbers)
    for share in (0.5, 0.9, 0.99, 0.999):
        exact = sorted(numbers)[math.ceil(share * len(numbers)) - 1]
        assert found.quantile(share) == pytest.approx(exact, rel=0.015, abs=1)
    assert math.isnan(Summary().quantile(0.5))
    assert summary(0, 0).quantile(0.9) == 0


def test_quantiles_forget_and_sums_do_not() -> None:
    now = [0.0]
    recorder = SummaryRecorder(lambda: now[0])
    recorder.record(5_000_000)
    now[0] = 61.0
    assert sum(recorder.report().sizes.values()) == 1
    now[0] = 200.0
    assert recorder.report() == Summary(1, 5000, {})
