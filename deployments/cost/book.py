"""The account of the server: divides what ingresses have measured among clients, and keeps the ledger."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from app.core.cost.amounts import Consumption
from app.core.cost.budgets import Budget, Spending, parse_budget, unpriced
from app.core.cost.ledger import LedgerWriter, read_hours
from app.core.cost.minutes import Minutes, MinuteUse, minute_of
from app.core.cost.prices import Prices, read_prices, spent
from app.core.cost.reports import CallUse, CostAnswer, CostReport, NodeUse, VersionSaving, VersionUse
from app.core.cost.rows import Kind, LedgerRow, hour_of, summed
from app.core.cost.split import Share, VersionSplit
from app.core.files.private_files import state_directory
from app.core.identifiers import name_of
from app.core.observability.reporter import ReportNumbers
from app.settings.settings import ServerSettings
from deployments.cost.totals import Totals

logger = logging.getLogger(__name__)

pause: Final = asyncio.sleep

_STEP_S: Final = 1.0
_FLUSH_STEPS: Final = 60
_KEPT_ROWS: Final = 20_000
"""Rows that wait for a ledger that cannot be written: the newest are left out."""


class CostBook:
    """Adds up reports, divides them once a second, and appends to the ledger once a minute.

    Args:
        directory: of the ledger; None for none.
        prices: of what is consumed, for budgets in money; None for none.
        clock: Unix seconds.
        savings: returns what versions save that have taken over.

    Attributes:
        minutes: what each version has consumed in the last hours.
    """

    def __init__(
        self,
        directory: Path | None = None,
        prices: Prices | None = None,
        clock: Callable[[], float] = time.time,
        savings: Callable[[], tuple[VersionSaving, ...]] = tuple,
    ) -> None:
        self.minutes = Minutes()
        self._savings = savings
        self._directory, self._prices, self._clock = directory, prices, clock
        self._ledger = None if directory is None else LedgerWriter(directory)
        self._failing = False
        self._splits: dict[tuple[str, int], VersionSplit] = {}
        self._rows: list[LedgerRow] = []
        self._totals = Totals()
        self._reports = ReportNumbers()
        self._named = False
        self._budgets: dict[str, str] = {}
        self._spending = Spending()

    async def run(self, is_stopping: Callable[[], bool]) -> None:
        """Divide once a second, and write once a minute, until the end."""
        steps = 0
        while not is_stopping():
            await pause(_STEP_S)
            try:
                self.step()
                steps += 1
                if steps % _FLUSH_STEPS == 0:
                    await self.flush()
            except Exception:
                logger.exception("accounting for costs")

    def close(self) -> None:
        """Divide what is left, and write. Blocks for a moment."""
        self._share(lambda split: split.end())
        self._write(self._taken())

    async def report(self, report: CostReport) -> CostAnswer:
        """Add what an ingress reports, once; return the figures of the whole server."""
        if self._reports.add(report.ingress, report.number):
            self._named = self._named or report.calls is not None
            for call in report.calls or ():
                self._add_call(report.node, call)
            if report.use is not None:
                self._add_use(report.use)
        budgets = {**self._budgets, **report.budgets}
        if budgets != self._budgets:
            await self._set_budgets(budgets)
        refusals = self._spending.refusals(self._clock())
        told = {name: (failure.message, failure.retry_after_s) for name, failure in refusals.items()}
        return msgspec.structs.replace(self._totals.answer(told), savings=self._savings())

    def step(self) -> None:
        """Divide what can be divided by now."""
        self._share(lambda split: split.step())

    async def flush(self) -> None:
        """Append to the ledger what has come since the last time."""
        taken = self._taken()
        if not await asyncio.to_thread(self._write, taken):
            self._rows = [*taken, *self._rows][:_KEPT_ROWS]

    def _taken(self) -> list[LedgerRow]:
        taken, self._rows = self._rows, []
        return taken

    def _write(self, rows: list[LedgerRow]) -> bool:
        """Append rows to the ledger, if there is one; return whether that went well."""
        if self._ledger is None or not rows:
            return True
        try:
            self._ledger.append(rows)
        except OSError as error:
            if not self._failing:
                logger.warning("the cost ledger cannot be written: %s", error)
            self._failing = True
        else:
            self._failing = False
        return not self._failing

    def _split(self, model: str, version: int) -> VersionSplit:
        return self._splits.setdefault((model, version), VersionSplit())

    def _add_use(self, use: NodeUse) -> None:
        now = self._clock()
        for version in use.versions:
            self._add_version(use.node, version, now)
        for kind, amount in use.overhead.items():
            self._totals.overhead(kind, amount.cpu_seconds)
            self._add_row("overhead", use.node, model=kind, **amount.figures)
        self._totals.measured_s += use.cpu_seconds
        node = {"node_core_seconds": use.core_seconds, "node_gib_seconds": use.gib_seconds}
        self._add_row("measured", use.node, cpu_seconds=use.cpu_seconds, **node)

    def _add_version(self, node: str, use: VersionUse, now: float) -> None:
        model, number, split = name_of(use.model), str(use.version), self._split(use.model, use.version)
        if use.consumed != Consumption():
            split.consumed((node, use.gpu), use.consumed)
        if use.in_flight is not None:
            split.in_flight(node, use.in_flight)
        if self._named:
            split.noted(use.rows)
        elif use.requests or use.rows:
            split.answered("", use.rows or use.requests)
            self._add_row("usage", node, model=model, version=number, requests=use.requests, rows=use.rows)
        for call in use.calls if self._named else ():
            self._add_call(node, call)
        minute = MinuteUse(minute_of(now), use.consumed.cpu_seconds, use.rows)
        if minute.cpu_seconds or minute.rows:
            self.minutes.add(model, number, minute)

    def _add_call(self, node: str, call: CallUse) -> None:
        split, left = self._split(call.model, call.version), (call.requests, call.rows)
        shares = [*self._shares_of(call).items()]
        for client, share in shares[1:]:
            part = int(call.requests * share), int(call.rows * share)
            left = left[0] - part[0], left[1] - part[1]
            self._add_answers(node, split, call, (client, share), part)
        self._add_answers(node, split, call, shares[0], left)

    def _add_answers(
        self, node: str, split: VersionSplit, call: CallUse, to: tuple[str, float], counts: tuple[int, int]
    ) -> None:
        (client, share), (requests, rows) = to, counts
        split.answered(client, call.weight * share)
        place = {"model": name_of(call.model), "version": str(call.version), "token": client}
        nbytes = {"bytes_in": call.bytes_in, "bytes_out": call.bytes_out}
        self._add_row("usage", node, **place, requests=requests, rows=rows, **nbytes)

    def _shares_of(self, call: CallUse) -> Mapping[str, float]:
        """Return whose a call is: of a model, as the cost of that model is divided."""
        if not call.caller:
            return {call.client: 1.0}
        callers = [split for (model, _), split in self._splits.items() if model == call.caller]
        return callers[-1].shares if callers else {"": 1.0}

    def _share(self, divide: Callable[[VersionSplit], Iterable[Share]]) -> None:
        for (model, version), split in self._splits.items():
            for place, client, amount in divide(split):
                self._totals.version(model, version, client, amount.cpu_seconds)
                names = {"model": name_of(model), "version": str(version), "token": client or ""}
                kind: Kind = "idle" if client is None else "usage"
                self._add_row(kind, place[0], gpu=place[1], **names, **amount.figures)
        self._splits = {key: each for key, each in self._splits.items() if not each.forgotten}

    def _add_row(self, kind: Kind, node: str, **fields: Any) -> None:
        now = self._clock()
        row = LedgerRow(hour_of(now), kind, node, **fields)
        if row.token:
            budget = self._spending.units().get(row.token)
            if budget is not None:
                self._spending.spend(row.token, spent(row, budget, self._prices), now)
        self._rows.append(row)
        if len(self._rows) > _KEPT_ROWS // 4:
            self._rows = summed(self._rows)[:_KEPT_ROWS]

    async def _set_budgets(self, texts: Mapping[str, str]) -> None:
        """Put budgets into force; what the ledger has of their periods counts."""
        self._budgets = dict(texts)
        budgets = dict(_parsed(texts))
        if fault := unpriced(budgets, self._prices):
            logger.warning("%s: it is not held", fault)
        spending = Spending(budgets)
        await self.flush()
        if self._directory is not None:
            await asyncio.to_thread(self._recover, spending)
        self._spending = spending

    def _recover(self, spending: Spending) -> None:
        assert self._directory is not None
        try:
            spending.recover(read_hours([self._directory], spending.since(self._clock())), self._prices)
        except OSError as error:
            logger.warning("what tokens have spent before is not known: %s", error)


def _parsed(texts: Mapping[str, str]) -> Iterator[tuple[str, Budget]]:
    for name, text in texts.items():
        try:
            yield name, parse_budget(text)
        except ValueError as error:  # of an ingress of another version of this server
            logger.warning("token '%s': %s", name, error)


def open_book(
    settings: ServerSettings,
    default: bool = True,
    savings: Callable[[], tuple[VersionSaving, ...]] = tuple,
) -> CostBook:
    """Return the account of a server.

    Args:
        settings: of the server.
        default: keep a ledger also where `--cost-directory` names no place for it.
        savings: see `CostBook`.
    """
    cost = settings.cost
    directory: Path | None = None
    if cost.enabled and (cost.directory or default):
        try:
            directory = Path(cost.directory or state_directory("cost", settings.model_store.state_directory))
        except OSError as error:
            logger.warning("there is no cost ledger: %s", error)
    prices: Prices | None = None
    if cost.prices:
        try:
            prices = read_prices(cost.prices)
        except (OSError, ValueError) as error:  # it was right when the server started
            logger.error("--cost-prices: %s; budgets in money are not held", error)
    return CostBook(directory, prices, savings=savings)
