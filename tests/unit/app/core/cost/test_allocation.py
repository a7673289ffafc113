"""What is kept for versions, whether they use it or not."""

import pytest

from app.core.cost.allocation import UNALLOCATED, allocated
from app.core.cost.rows import Kind, LedgerRow

HOUR = "2026-11-26T21:00:00Z"


def row(kind: Kind = "usage", model: str = "wine", token: str = "", **fields: object) -> LedgerRow:
    return LedgerRow(HOUR, kind, "node", model, "1", token, **fields)  # type: ignore[arg-type]


def cores(rows: list[LedgerRow]) -> dict[tuple[str, str, str], float]:
    return {(each.kind, each.model, each.token): each.cpu_seconds for each in allocated(rows)}


def test_clients_share_what_is_reserved_by_their_use() -> None:
    rows = [
        row(token="anna", cpu_seconds=30.0),
        row(token="ben", cpu_seconds=10.0),
        row("idle", cpu_seconds=2.0, reserved_core_seconds=3600.0),
    ]
    assert cores(rows) == {
        ("usage", "wine", "anna"): pytest.approx(2700),
        ("usage", "wine", "ben"): pytest.approx(900),
        ("idle", "wine", ""): 0.0,
    }


def test_more_than_what_is_reserved_is_allocated_as_it_was_used() -> None:
    rows = [row(token="anna", cpu_seconds=30.0, reserved_core_seconds=20.0), row("idle", cpu_seconds=10.0)]
    assert cores(rows)["usage", "wine", "anna"] == 40.0


def test_a_version_without_requests_has_its_allocation_itself() -> None:
    rows = [row("idle", cpu_seconds=2.0, reserved_core_seconds=3600.0, reserved_gib_seconds=7200.0)]
    (found,) = allocated(rows)
    assert (found.cpu_seconds, found.memory_gib_seconds) == (3600.0, 7200.0)


def test_clients_share_by_requests_where_nothing_was_measured() -> None:
    rows = [row(token="anna", requests=3), row(token="ben", requests=1, reserved_core_seconds=100.0)]
    assert cores(rows)["usage", "wine", "anna"] == 75.0


def test_workloads_idle_and_overhead_are_the_node() -> None:
    measured = LedgerRow(HOUR, "measured", "node", node_core_seconds=14400.0, node_gib_seconds=57600.0)
    rows = [
        row(token="anna", cpu_seconds=30.0, reserved_core_seconds=3600.0, memory_gib_seconds=600.0),
        row("overhead", "ingress", cpu_seconds=100.0, memory_gib_seconds=200.0),
        measured,
    ]
    found = [each for each in allocated(rows) if each.kind != "measured"]
    assert sum(each.cpu_seconds for each in found) == 14400.0
    assert sum(each.memory_gib_seconds for each in found) == 57600.0
    assert cores(rows)["idle", UNALLOCATED, ""] == 14400.0 - 3600.0 - 100.0


def test_more_reserved_than_there_is_shows() -> None:
    measured = LedgerRow(HOUR, "measured", "node", node_core_seconds=3600.0)
    rows = [row("idle", reserved_core_seconds=7200.0), measured]
    assert cores(rows)["idle", UNALLOCATED, ""] == -3600.0
