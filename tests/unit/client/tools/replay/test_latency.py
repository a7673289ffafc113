"""Latencies of the same rows, before and now."""

import numpy as np
import pytest

from nereid_client.tools.replay.latency import Latencies, latencies

MS = 1e6


def compared(factor: float, number: int = 2000, spread: float = 0.05, **fields: int) -> Latencies:
    random = np.random.default_rng(7)
    then = random.gamma(4, 2.5, number) * MS
    now = then * factor * np.exp(random.normal(0, spread, number))
    return latencies(then.astype(int).tolist(), now.astype(int).tolist(), 0.10, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.0, "same"), (1.05, "same"), (1.6, "worse"), (0.5, "better")]
)
def test_verdicts(factor: float, verdict: str) -> None:
    found = compared(factor)
    figures = {each.name: each for each in found.figures}
    assert figures["p50"].verdict == figures["p99"].verdict == verdict and found.worse == (verdict == "worse")
    assert figures["p50"].low < figures["p50"].ratio < figures["p50"].high
    assert not figures["p90"].verdict and found.rows == 2000


def test_few_rows_have_no_verdict() -> None:
    assert not compared(1.6, 40).worse and "40 rows are too few" in compared(1.6, 40).why
    some = {each.name: each.verdict for each in compared(1.6, 200).figures}
    assert some["p50"] == "worse" and not some["p99"]
    assert latencies([], [], 0.1).figures == ()


def test_what_clients_have_beyond_a_tape_is_taken_off() -> None:
    then = [1_000_000] * 100
    now = [1_800_000] * 100
    assert latencies(then, now, 0.1).worse
    found = latencies(then, now, 0.1, way_ns=800_000)
    assert not found.worse and found.way_ms == 0.8 and found.figures[0].now == 1.0
    assert latencies(then, now, 0.1, way_ns=5_000_000).figures[0].now == 0.0


def test_microseconds_and_unwanted_verdicts_are_no_verdicts() -> None:
    assert not latencies([100_000] * 100, [180_000] * 100, 0.1).worse, "a client wakes up as late"
    found = latencies([1_000_000] * 100, [9_000_000] * 100, 0.1, "other load")
    assert not found.worse and found.why == "other load" and found.figures[0].now == 9.0
