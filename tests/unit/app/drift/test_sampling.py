"""Requests are counted at random, and never more rows than allowed."""

import random
from itertools import pairwise

import pytest

from app.drift.sampling import Sampler


def counted(sampler: Sampler, requests: int, rate: float, start: float = 0.0, rows: int = 1) -> list[int]:
    """Send requests evenly; return the numbers of those that are counted, once for each row."""
    found = []
    for number in range(requests):
        sampler.left -= 1
        if sampler.left <= 0:
            found += [number] * sampler.take(rows, start + number / rate)
    return found


def test_all_requests_are_counted_while_there_are_few() -> None:
    assert counted(Sampler(200, 0.0), 1000, 100.0) == list(range(1000))


@pytest.mark.parametrize(("rate", "rows"), [(1000.0, 1), (20_000.0, 1), (500.0, 4), (50.0, 1000)])
def test_so_many_rows_a_second_are_counted_of_more(rate: float, rows: int) -> None:
    sampler = Sampler(200, 0.0, random.Random(1).random)
    found = counted(sampler, int(rate * 30), rate, rows=rows)
    assert 30 * 200 * 0.7 <= len(found) <= 30 * 200 + 200


def test_a_burst_counts_no_more_than_the_limit() -> None:
    assert len(counted(Sampler(200, 0.0), 10_000, 1e6)) <= 220


def test_requests_are_not_counted_in_turn() -> None:
    sampler = Sampler(200, 0.0, random.Random(2).random)
    found = counted(sampler, 60_000, 2000.0)
    gaps = {after - before for before, after in pairwise(found[200:])}
    assert len(gaps) > 20


def test_a_rate_that_falls_is_followed_after_a_look() -> None:
    sampler = Sampler(200, 0.0, random.Random(3).random)
    counted(sampler, 100_000, 100_000.0)
    assert sampler.left > 1
    sampler.refresh(1000.0)
    assert len(counted(sampler, 100, 10.0, 1000.0)) == 100
