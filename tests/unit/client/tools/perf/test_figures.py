"""What records say."""

import numpy as np
import pytest

from nereid_client.tools.perf import figures
from nereid_client.tools.perf.figures import Interval, Window
from nereid_client.tools.perf.generator.job import End
from tests.unit.client.tools.perf.rows import MS, SECOND, result, rows


def test_percentiles_are_values_that_were_measured() -> None:
    spread = figures.spread(np.arange(1, 101) * MS)
    assert spread["p50"] == 50 and spread["p99"] == 99 and spread["p99.9"] == 100
    assert spread["mean"] == 50.5 and spread.max == 100
    assert figures.spread([])["p99"] == 0


def test_latency_counts_from_the_intended_begin() -> None:
    late = rows([30] * 10, late_ms=20)
    assert set(figures.latencies(late)) == {30 * MS} and set(figures.service_times(late)) == {10 * MS}
    assert set(figures.lateness(late)) == {20 * MS}


def test_refused_requests_have_no_latency_but_late_ones_do() -> None:
    records = np.concatenate([rows([1]), rows([2], end=End.REFUSED), rows([9000], end=End.LATE)])
    assert figures.latencies(records).tolist() == [1 * MS, 9000 * MS]
    assert figures.failures(records) == 2 and figures.rate(records, 0, SECOND) == 1


@pytest.mark.parametrize(
    ("closed", "windows", "agreed"),
    [
        (True, [(100, 5.0), (101, 5.1), (99, 4.9)], True),
        (True, [(100, 5.0), (101, 5.1)], False),
        (True, [(900, 9.0), (100, 5.0), (101, 5.1), (99, 4.9)], True),
        (True, [(100, 5.0), (130, 5.1), (99, 4.9)], False),
        (True, [(100, 5.0), (101, 7.1), (99, 4.9)], False),
        (True, [(0, 0.0), (0, 0.0), (0, 0.0)], False),
        (False, [(100, 5.0), (130, 5.1), (80, 4.9)], True),  # as many as arrived
    ],
)
def test_windows_agree(closed: bool, windows: list[tuple[float, float]], agreed: bool) -> None:
    found = [Window(rate, latency, 0, rate) for rate, latency in windows]
    assert figures.agree(found, 3, 0.10, closed) is agreed


def test_intervals_are_wide_where_the_parts_of_a_level_differ() -> None:
    steady = figures.intervals(rows([5] * 1000), 0, 10 * SECOND, [99])
    stalled = figures.intervals(rows([5] * 900 + [2000] * 100), 0, 10 * SECOND, [99])
    assert steady["p99"] == Interval(5, 5) and stalled["p99"].high - stalled["p99"].low > 500
    assert steady["rate"].low == pytest.approx(100, abs=1)
    assert set(figures.intervals(rows([5] * 100), 0, 10 * SECOND, [99])) == {"rate"}  # nothing after 1 s


def test_longest_silence_needs_requests_that_wait() -> None:
    # One request every 10 ms, but for 2 s nothing is answered: the first of them waits since 1 s.
    stalled = rows([1] * 100 + [2000 - 10 * i for i in range(200)] + [1] * 100)
    silence, begin = figures.longest_silence(stalled, 0)
    assert silence == pytest.approx(2.0, abs=0.05) and begin == pytest.approx(1.0, abs=0.02)
    idle = rows([1, 1], every_ms=3000)
    assert figures.longest_silence(idle, 0)[0] < 0.01


def test_stall_is_the_reason_of_an_unstable_level() -> None:
    found = result([1] * 100 + [2000 - 10 * i for i in range(200)] + [1] * 100)
    assert not found.stable and "no answer for 2.00 s, from 1.0 s on" in found.reasons
    assert found.latency["p99"] > 1000


def test_level_without_agreement_has_a_result_and_a_reason() -> None:
    found = result([1] * 100, agreed=False)
    assert not found.stable and found.reasons == ("rate or latency differ between windows",)
    assert found.latency["p50"] == 1


def test_failures_and_a_server_that_falls_behind_are_reasons() -> None:
    failed = result([1] * 10, records=np.concatenate([rows([1] * 9), rows([1], end=End.CUT)]))
    assert failed.reasons == ("1 of 10 requests failed",) and failed.failed == 1
    behind = result([1 + 5 * i for i in range(100)])
    assert any("of the 100/s: requests queue up" in reason for reason in behind.reasons)


def test_level_is_void_when_the_generator_is_late_or_busy() -> None:
    assert result([10] * 100).void == ""
    assert "itself was late: 2.00 ms" in result([10] * 100, records=rows([10] * 100, late_ms=2)).void
    assert result([1] * 100, records=rows([1] * 100, late_ms=0.2)).void == ""  # any client wakes up so late
    assert "93% of a core" in result([10] * 100, busy=0.93).void
    assert result([], records=rows([])).void == "no request was to begin"


def test_timeline_and_curve() -> None:
    found = result([1.0] * 50 + [3.0] * 50)
    assert [round(p99) for _, _, _, p99 in found.timeline][:: len(found.timeline) - 1] == [1, 3]
    assert dict(found.curve)[100] == 3 and dict(found.curve)[45] == 1


def test_gaps_are_between_the_responses_of_one_stream() -> None:
    records = rows([10, 10, 10, 10])
    records[:, 6] = [3, 0, 1, 2]
    moments = np.array([1, 3, 6, 100, 200, 205])
    assert figures.gaps(records, moments, 0, SECOND).tolist() == [2, 3, 5]
    assert figures.gaps(records, moments, 10 * MS, SECOND).tolist() == [5]
    kept = list(figures.response_moments(records, moments, 10 * MS, SECOND))
    assert [(begin, own.tolist()) for begin, own in kept] == [
        (10 * MS, []),
        (20 * MS, [100]),
        (30 * MS, [200, 205]),
    ]
