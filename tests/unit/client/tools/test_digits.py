"""Figures that people read have no exponent, whichever tool prints them."""

import re
from pathlib import Path
from typing import Any

import pytest

from nereid_client.tools import charts
from nereid_client.tools.analyze import report
from nereid_client.tools.analyze.space import Candidate
from nereid_client.tools.analyze.state import State
from nereid_client.tools.analyze.trials import Measured
from nereid_client.tools.digits import all_digits, four_digits
from nereid_client.tools.perf.compare import Change
from nereid_client.tools.perf.generator.job import Level
from nereid_client.tools.perf.report import text
from nereid_client.tools.perf.report.page import page
from nereid_client.tools.plan import command
from nereid_client.tools.plan.calibration import Calibration
from nereid_client.tools.plan.simulation import Replica

EXPONENT = re.compile(r"\de[+-]\d")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (12_345.6, "12350"),
        (9_999.6, "10000"),
        (1e7, "10000000"),
        (123.45, "123.5"),
        (100.0, "100"),
        (0.0, "0"),
        (0.00001234, "0.00001234"),
        (-2.5, "-2.5"),
    ],
)
def test_four_digits_count(value: float, shown: str) -> None:
    assert four_digits(value) == shown


def test_what_was_asked_for_keeps_its_digits() -> None:
    assert [all_digits(each) for each in (1_234_567.5, 3 * 0.1, 1e-7)] == ["1234567.5", "0.3", "0.0000001"]


def test_perf_prints_no_exponent() -> None:
    assert text.verdict({"rate": 12_345.6, "rules": "p99<1ms"}) == "12350/s keeps p99<1ms"
    assert str(Level("rate", 1_234_567.0)) == "1234567/s"
    assert str(Level("concurrency", 2_000_000)) == "2000000 in flight"
    change = Change("10/s", "p99", 12_345.6, 23_456.7, "worse")
    cells = [list(column.cells) for column in text.changes_table([change]).columns]
    assert cells[2:4] == [["12350"], ["23460"]]
    document = dict.fromkeys(("model", "url", "server", "batch", "arrivals", "when", "slo"), "")
    assert "<td>12350</td>" in page(document, [], [change])


def test_analyze_prints_no_exponent() -> None:
    one, two = Candidate(4, 0, 1), Candidate(8, 0, 1)
    state = State(Path(), {}, {one: 20_000.0}, {one: Measured(12_345.6), two: Measured(0, below=98_765)}, {})
    assert [line[1:4] for line in report.rows(state, {})] == [["20000", "", "12350"], ["–", "", "< 98760"]]


class FakeServer:
    """Has one model."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> "FakeServer":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def model(self, name: str) -> "FakeServer":
        return self

    def described(self) -> tuple[str, dict[str, Any]]:
        return "", {"max_batch_size": 0, "instance_group": [{"count": 1}]}


def test_plan_prints_no_exponent(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = Calibration(Replica([0.0, 1e-5], batch=0), 56_789.0, 1.25, 1_234.0, 23_456.0, 1.0, 1.0)
    monkeypatch.setattr(command, "Server", FakeServer)
    monkeypatch.setattr(command, "calibrate", lambda *_: found)
    assert command.main(["-m", "m", "--slo", "p99<20ms", "--rate", "12345.6", "--times", "10"]) == 0
    told = capsys.readouterr().out
    assert "answered 56790/s at most, 70990 by what" in told
    assert "p99 was 1234 ms, 23460 simulated" in told
    assert "123500 requests a second, 10 times the 12350 of today" in told
    assert not EXPONENT.search(told)


def test_ticks_and_titles_of_charts_have_no_exponent() -> None:
    x, y = charts.linear([12_345_678.0], "requests/s"), charts.logarithmic([0.5, 4_000_000.0], "ms")
    made = charts.lines({"p99": [(12_345_678.0, 12_345.0)]}, x, y, {"limit": 2_000_000.0})
    assert "p99: 12340 ms at 12350000 requests/s" in made and ">10000000<" in made
    assert not EXPONENT.search(made)
