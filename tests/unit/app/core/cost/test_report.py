"""The cost report: grouping, prices, both views."""

import pytest

from app.core.cost.allocation import UNALLOCATED
from app.core.cost.ledger import Hour
from app.core.cost.prices import parse_prices
from app.core.cost.report import Line, Report, report
from app.core.cost.rows import Kind, LedgerRow

HOURS = ("2026-11-26T21:00:00Z", "2026-11-26T22:00:00Z")
PRICES = parse_prices("{currency: EUR, cpu_core_hour: 3600, watts_per_core: 10, energy_kwh: 360000}")


def hour(text: str) -> Hour:
    def row(kind: Kind, model: str, token: str, seconds: float, **fields: object) -> LedgerRow:
        return LedgerRow(text, kind, "node", model, "1", token, cpu_seconds=seconds, **fields)  # type: ignore[arg-type]

    rows = [
        row("usage", "wine", "anna", 4.0, requests=8, rows=16, energy_joules=None),
        row("usage", "wine", "ben", 1.0, requests=2, energy_joules=None),
        row("usage", "ocr", "anna", 3.0, requests=1, energy_joules=None),
        row("idle", "wine", "", 0.5, reserved_core_seconds=100.0, energy_joules=None),
        row("overhead", "ingress", "", 2.0, energy_joules=None),
        LedgerRow(text, "measured", "node", cpu_seconds=11.0, node_core_seconds=3600.0),
    ]
    return Hour(text, rows, 1)


def found(*by: str, prices: bool = False) -> Report:
    return report(map(hour, HOURS), by, PRICES if prices else None)


def line(made: Report, kind: str, *names: str) -> Line:
    (one,) = [each for each in made.lines if each.kind == kind and (*each.names.values(),) == names]
    return one


def test_lines_are_by_the_fields_that_are_asked_for() -> None:
    made = found("token", "model")
    keys = [(each.kind, *each.names.values()) for each in made.lines]
    assert keys == [
        ("usage", "anna", "wine"),
        ("usage", "anna", "ocr"),
        ("usage", "ben", "wine"),
        ("idle", "", "wine"),
        ("idle", "", UNALLOCATED),
        ("overhead", "", "ingress"),
    ]
    anna = line(made, "usage", "anna", "wine")
    assert (anna.cpu_seconds, anna.requests, anna.rows, anna.cost) == (8.0, 16, 32, None)
    assert anna.allocated_core_seconds == pytest.approx(2 * 80)
    assert line(found("token"), "usage", "anna").cpu_seconds == 14.0
    assert line(found("hour", "model"), "usage", HOURS[1], "ocr").cpu_seconds == 3.0
    assert line(found("day"), "usage", "2026-11-26").cpu_seconds == 16.0


def test_both_views_have_their_cost() -> None:
    anna = line(found("token", "model", prices=True), "usage", "anna", "wine")
    assert anna.cost is not None and anna.allocated_cost is not None
    assert (anna.energy_joules, anna.energy_estimated) == (80.0, True)
    assert (anna.cost["cpu"], anna.cost["energy"], anna.cost["total"]) == pytest.approx((8.0, 8.0, 16.0))
    assert (anna.allocated_cost["cpu"], anna.allocated_cost["energy"]) == pytest.approx((160.0, 8.0))


def test_allocation_of_all_lines_is_the_node() -> None:
    made = found("token", "model", prices=True)
    assert sum(each.allocated_core_seconds for each in made.lines) == pytest.approx(7200.0)


def test_it_ends_in_a_reconciliation() -> None:
    made = found("token")
    assert (made.total.told, made.total.measured) == (21.0, 22.0)
    assert made.total.difference == pytest.approx(-1 / 22)
    assert made.hours[HOURS[0]] == {"usage": 8.0, "idle": 0.5, "overhead": 2.0}
    assert (made.first, made.last, made.broken, made.currency) == (*HOURS, 2, "")


def test_an_unknown_energy_stays_unknown_without_prices() -> None:
    assert line(found("token"), "usage", "anna").energy_joules is None


def test_nothing_gives_an_empty_report() -> None:
    made = report([], ("token",))
    assert (made.lines, made.hours, made.first) == ((), {}, "")
