"""The account of the server, and its ledger."""

from pathlib import Path
from typing import Any

import pytest

from app.core.cost.amounts import Consumption
from app.core.cost.ledger import read_hours
from app.core.cost.prices import Prices
from app.core.cost.reports import CallUse, CostReport, NodeUse, VersionCost, VersionSaving, VersionUse
from app.core.cost.rows import LedgerRow
from app.settings.settings import ServerSettings
from deployments.cost.book import CostBook, open_book

NOW = 1_800_000_000.0


def cpu(seconds: float) -> Consumption:
    return Consumption(cpu_seconds=seconds)


def use(*versions: VersionUse, overhead: float = 0.0) -> NodeUse:
    measured = sum(each.consumed.cpu_seconds for each in versions) + overhead
    others = {"raylet": cpu(overhead)} if overhead else {}
    return NodeUse("n", [*versions], others, measured, 2.0, 8.0)


class Ingress:
    """Reports to a book."""

    def __init__(self, book: CostBook, name: str = "i") -> None:
        self.book, self.name, self.number = book, name, 0

    async def report(self, **fields: Any) -> Any:
        self.number += 1
        return await self.book.report(CostReport(self.name, self.number, "n", **fields))


def book(directory: Path | None = None, prices: Prices | None = None) -> CostBook:
    return CostBook(directory, prices, lambda: NOW)


def rows(directory: Path) -> dict[tuple[str, str, str], LedgerRow]:
    found: dict[tuple[str, str, str], LedgerRow] = {}
    for hour in read_hours([directory]):
        assert not hour.broken
        found.update({(row.kind, row.model, row.token): row for row in hour.rows})
    return found


async def test_versions_clients_and_overhead_are_all_that_was_measured(tmp_path: Path) -> None:
    account = book(tmp_path / "cost")
    ingress = Ingress(account)
    calls = [CallUse("a", 1, "x", "", 3, 9, 9.0, 90, 9), CallUse("a", 1, "y", "", 3, 3, 3.0, 30, 3)]
    idle = VersionUse("b", 1, "", cpu(0.2))
    busy = VersionUse("a", 1, "", cpu(4.0), 6, 12, 0)
    await ingress.report(calls=calls, use=use(busy, idle, overhead=0.3))
    for _ in range(5):
        account.step()
    answer = await ingress.report(calls=[])
    assert answer.clients == {"x": 3.0, "y": 1.0}
    assert answer.versions == (VersionCost("a", 1, 4.0, 0.0), VersionCost("b", 1, 0.0, 0.2))
    assert (answer.overhead, answer.measured_s) == ({"raylet": 0.3}, pytest.approx(4.5))
    account.close()
    found = rows(tmp_path / "cost")
    of_x = found["usage", "a", "x"]
    assert (of_x.cpu_seconds, of_x.requests, of_x.rows, of_x.bytes_in, of_x.bytes_out) == (3.0, 3, 9, 90, 9)
    measured = found["measured", "", ""]
    assert (measured.node_core_seconds, measured.node_gib_seconds) == (2.0, 8.0)
    parts = sum(row.cpu_seconds for (kind, _, _), row in found.items() if kind != "measured")
    assert parts == pytest.approx(measured.cpu_seconds)


async def test_a_report_that_comes_twice_counts_once() -> None:
    account = book()
    report = CostReport("i", 1, "n", None, use(overhead=1.0))
    await account.report(report)
    assert (await account.report(report)).measured_s == 1.0


async def test_without_tokens_the_replicas_count_the_rows(tmp_path: Path) -> None:
    account = book(tmp_path / "cost")
    await Ingress(account).report(use=use(VersionUse("a", 1, "", cpu(1.0), 4, 8, 0)))
    account.step()
    account.close()
    row = rows(tmp_path / "cost")["usage", "a", ""]
    assert (row.cpu_seconds, row.requests, row.rows) == (1.0, 4, 8)
    assert [tuple(minute)[1:] for minute in account.minutes.of("a", "1")] == [(1.0, 8)]


async def test_calls_of_a_model_are_its_clients() -> None:
    account = book()
    ingress = Ingress(account)
    calls = [CallUse("outer", 1, "x", "", 1, 3, 3.0), CallUse("outer", 1, "y", "", 1, 1, 1.0)]
    await ingress.report(calls=calls, use=use(VersionUse("outer", 1, "", cpu(1.0), 2, 4, 0)))
    account.step()
    inner = [CallUse("inner", 2, "", "outer", 4, 8, 8.0)]
    versions = (
        VersionUse("inner", 2, "", cpu(2.0), 4, 8, 0),
        VersionUse("outer", 1, "", cpu(1.0), 2, 4, 0, inner),
    )
    await ingress.report(calls=calls, use=use(*versions))
    account.step()
    assert (await ingress.report(calls=[])).clients == {"x": 3.0, "y": 1.0}


async def test_a_client_that_has_spent_its_budget_is_told_from(tmp_path: Path) -> None:
    account = book(tmp_path / "cost")
    ingress = Ingress(account)
    budgets = {"x": "2 core-seconds/h", "y": "10 core-seconds/h"}
    assert (await ingress.report(calls=[], budgets=budgets)).spent == {}
    calls = [CallUse("a", 1, "x", "", 1, 1, 1.0), CallUse("a", 1, "y", "", 1, 1, 1.0)]
    await ingress.report(calls=calls, use=use(VersionUse("a", 1, "", cpu(5.0), 2, 2, 0)), budgets=budgets)
    account.step()
    spent = (await ingress.report(calls=[], budgets=budgets)).spent
    assert list(spent) == ["x"]
    text, wait = spent["x"]
    assert text.startswith("the token 'x' has spent its budget of 2 core-seconds/h, try again in ")
    assert 0 < wait <= 3600
    account.close()
    again = Ingress(book(tmp_path / "cost"))  # after a restart, by the ledger
    assert list((await again.report(calls=[], budgets=budgets)).spent) == ["x"]


async def test_a_budget_in_money() -> None:
    account = book(prices=Prices("EUR", cpu_core_hour=3600.0))
    ingress = Ingress(account)
    budgets = {"x": "1 EUR/d"}
    await ingress.report(calls=[], budgets=budgets)
    calls = [CallUse("a", 1, "x", "", 1, 1, 1.0)]
    await ingress.report(calls=calls, use=use(VersionUse("a", 1, "", cpu(1.5), 1, 1, 0)), budgets=budgets)
    account.step()
    assert list((await ingress.report(calls=[])).spent) == ["x"]


async def test_ingresses_are_told_what_rollouts_save() -> None:
    saved = (VersionSaving("a", 2, 0.4, 0.5, 0.6),)
    account = open_book(ServerSettings(), default=False, savings=lambda: saved)
    assert (await Ingress(account).report(calls=[])).savings == saved


async def test_a_ledger_that_cannot_be_written_is_told_once_and_written_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "cost"
    place.write_text("no directory")
    account = book(place)
    ingress = Ingress(account)
    await ingress.report(use=use(overhead=1.0))
    await account.flush()
    await account.flush()
    assert caplog.text.count("the cost ledger cannot be written") == 1
    place.unlink()
    await account.flush()
    assert rows(place)["overhead", "raylet", ""].cpu_seconds == 1.0
