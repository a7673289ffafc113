"""What the ledger gives to somebody, beside what was measured."""

import pytest

from app.core.cost.reconcile import Reconciliation, reconciled, together
from app.core.cost.rows import Kind, LedgerRow


def row(kind: Kind, seconds: float, node: str = "a") -> LedgerRow:
    return LedgerRow("2026-11-26T21:00:00Z", kind, node, cpu_seconds=seconds)


def test_parts_add_up_for_each_node_and_for_all() -> None:
    rows = [row("usage", 50), row("usage", 20), row("idle", 10), row("overhead", 17), row("measured", 100)]
    nodes = reconciled([*rows, row("usage", 5, "b"), row("measured", 5, "b")])
    assert nodes["a"] == Reconciliation(70, 10, 17, 100)
    assert nodes["a"].difference == pytest.approx(-0.03)
    assert together(nodes.values()) == Reconciliation(75, 10, 17, 105)


def test_without_a_measurement_there_is_no_difference() -> None:
    assert reconciled([row("usage", 50)])["a"].difference is None
    assert together([]).difference is None
