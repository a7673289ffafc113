"""Figures for metrics are bounded."""

import pytest

from app.core.cost.rows import OTHER
from deployments.cost import totals
from deployments.cost.totals import Totals


def test_what_comes_late_is_added_up_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(totals, "_VERSIONS", 1)
    monkeypatch.setattr(totals, "_CLIENTS", 1)
    found = Totals()
    for number in range(3):
        found.version(f"m{number}", 1, f"c{number}", 1.0)
    found.version("m0", 1, None, 5.0)
    found.version("m0", 1, "", 1.0)
    answer = found.answer({})
    assert [(each.model, each.usage_s, each.idle_s) for each in answer.versions] == [
        ("m0", 2.0, 5.0),
        (OTHER, 2.0, 0.0),
    ]
    assert answer.clients == {"c0": 1.0, OTHER: 2.0}
