"""What was consumed, as the server tells it: by its own ledger, and of models that somebody may see."""

from pathlib import Path

import msgspec
import pytest

from app.core.cost.ledger import LedgerWriter
from app.core.cost.rows import LedgerRow
from app.core.errors import ErrorCode, InferError
from app.ingress.service.bill import bill
from app.settings.cost import CostSettings
from app.settings.settings import ServerSettings

HOUR = "2026-11-26T21:00:00Z"


def settings(directory: Path, **changed: object) -> ServerSettings:
    return msgspec.structs.replace(
        ServerSettings(),
        cost=CostSettings(directory=str(directory), **changed),  # type: ignore[arg-type]
    )


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    rows = [
        LedgerRow(HOUR, "usage", "n", "a", "1", "web", cpu_seconds=3600.0),
        LedgerRow(HOUR, "usage", "n", "b", "1", "ops", cpu_seconds=7200.0),
        LedgerRow(HOUR, "overhead", "n", "a", cpu_seconds=10.0),
    ]
    LedgerWriter(tmp_path / "cost").append(rows)
    return tmp_path / "cost"


def test_lines_are_of_the_ledger_with_prices(ledger: Path, tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("currency: EUR\ncpu_core_hour: 0.5\n")
    found = bill(settings(ledger, prices=str(prices)), 0.0, ("token",))
    named = {(line.kind, line.names["token"]): line.cost and line.cost["total"] for line in found.lines}
    assert named == {("usage", "ops"): 1.0, ("usage", "web"): 0.5, ("overhead", ""): pytest.approx(0.5 / 360)}


def test_who_sees_some_models_sees_nothing_of_others(ledger: Path) -> None:
    found = bill(settings(ledger), 0.0, ("model",), lambda model: model == "a")
    assert [(line.kind, line.names["model"]) for line in found.lines] == [("usage", "a")]


def test_server_without_a_ledger_says_so(tmp_path: Path) -> None:
    assert bill(settings(tmp_path / "none"), 0.0, ("model",)).lines == ()
    with pytest.raises(InferError, match="--cost=true") as caught:
        bill(settings(tmp_path, enabled=False), 0.0, ("model",))
    assert caught.value.code is ErrorCode.UNSUPPORTED
    with pytest.raises(InferError, match="cannot be read"):
        bill(settings(tmp_path, prices=str(tmp_path / "none.yaml")), 0.0, ("model",))
