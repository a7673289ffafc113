"""The cost report: hours of the ledger by client, model and more, used and allocated, with prices. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from app.core.cost.allocation import allocated
from app.core.cost.ledger import Hour
from app.core.cost.prices import Amount, Prices, energy, price
from app.core.cost.reconcile import Reconciliation, reconciled, together
from app.core.cost.rows import Kind, LedgerRow

FIELDS: Final = ("token", "model", "version", "node", "gpu", "hour", "day")
"""What a report may be by."""
_DAY: Final = len("2026-11-26")
_ORDER: Final[dict[str, int]] = {"usage": 0, "idle": 1, "overhead": 2}


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a report.

    Attributes:
        kind: as of the rows that it sums up.
        names: values of the fields that the report is by.
        requests, rows, bytes_in, bytes_out: of clients.
        cpu_seconds, memory_gib_seconds, gpu_seconds, gpu_gib_seconds: used.
        energy_joules: used; None if it is not known.
        energy_estimated: whether some of it is an estimate, by the price file.
        cost: of that, in the report's currency, in parts and in `total`; None without prices.
        allocated_core_seconds, allocated_gib_seconds: see `allocation`.
        allocated_cost: of these, in parts and in `total`; None without prices.
    """

    kind: Kind
    names: dict[str, str]
    requests: int
    rows: int
    bytes_in: int
    bytes_out: int
    cpu_seconds: float
    memory_gib_seconds: float
    gpu_seconds: float
    gpu_gib_seconds: float
    energy_joules: float | None
    energy_estimated: bool
    cost: dict[str, float] | None
    allocated_core_seconds: float
    allocated_gib_seconds: float
    allocated_cost: dict[str, float] | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A report.

    Attributes:
        by: the fields that its lines are by.
        first, last: the first and the last hour that it has; "" without any.
        currency: of the prices; "" without.
        lines: usage, then idle, then overhead; in each the most expensive first.
        hours: processor seconds that were used, by hour and kind.
        nodes: by name.
        total: of all nodes.
        broken: lines of the ledger that could not be read.
    """

    by: tuple[str, ...]
    first: str
    last: str
    currency: str
    lines: tuple[Line, ...]
    hours: dict[str, dict[str, float]]
    nodes: dict[str, Reconciliation]
    total: Reconciliation
    broken: int


_Key = tuple[Kind, tuple[str, ...]]


class _Sum:
    """Adds up the rows of a line, each priced by itself: what is estimated differs from row to row."""

    def __init__(self) -> None:
        self.used: LedgerRow | None = None
        self.kept: LedgerRow | None = None
        self.cost, self.kept_cost = Amount(), Amount()
        self.estimated = False

    def use(self, row: LedgerRow, prices: Prices | None) -> None:
        joules, estimated = energy(row, prices)
        self.estimated |= estimated
        known = msgspec.structs.replace(row, energy_joules=joules)
        self.used = known if self.used is None else self.used.plus(known)
        if prices is not None:
            self.cost = self.cost.plus(price(row, prices))

    def keep(self, row: LedgerRow, used: LedgerRow | None, prices: Prices | None) -> None:
        """Add what is allocated in the place of a row; it consumes the energy of what was used."""
        self.kept = row if self.kept is None else self.kept.plus(row)
        if prices is not None:
            spent = 0.0 if used is None else price(used, prices).energy
            self.kept_cost = self.kept_cost.plus(price(row, prices)._replace(energy=spent))

    def line(self, key: _Key, by: Sequence[str], priced: bool) -> Line:
        nothing = LedgerRow("", key[0], "")
        used, kept = self.used or nothing, self.kept or nothing
        return Line(
            kind=key[0],
            names=dict(zip(by, key[1], strict=True)),
            requests=used.requests,
            rows=used.rows,
            bytes_in=used.bytes_in,
            bytes_out=used.bytes_out,
            cpu_seconds=used.cpu_seconds,
            memory_gib_seconds=used.memory_gib_seconds,
            gpu_seconds=used.gpu_seconds,
            gpu_gib_seconds=used.gpu_gib_seconds,
            energy_joules=used.energy_joules,
            energy_estimated=self.estimated,
            cost=_parts(self.cost) if priced else None,
            allocated_core_seconds=kept.cpu_seconds,
            allocated_gib_seconds=kept.memory_gib_seconds,
            allocated_cost=_parts(self.kept_cost) if priced else None,
        )


def report(hours: Iterable[Hour], by: Sequence[str], prices: Prices | None = None) -> Report:
    """Return the report of hours of the ledger.

    Args:
        hours: the oldest first.
        by: some of `FIELDS`.
        prices: None for none.
    """
    sums = defaultdict[_Key, _Sum](_Sum)
    used = dict[str, dict[str, float]]()
    nodes = dict[str, Reconciliation]()
    broken = 0
    for hour in hours:
        _add(sums, hour, by, prices)
        used[hour.hour] = _by_kind(hour.rows)
        for node, found in reconciled(hour.rows).items():
            nodes[node] = together([nodes.get(node, Reconciliation()), found])
        broken += hour.broken
    lines = [each.line(key, by, prices is not None) for key, each in sums.items()]
    return Report(
        by=tuple(by),
        first=min(used, default=""),
        last=max(used, default=""),
        currency=prices.currency if prices is not None else "",
        lines=tuple(sorted(lines, key=_weight)),
        hours=used,
        nodes=dict(sorted(nodes.items())),
        total=together(nodes.values()),
        broken=broken,
    )


def _add(sums: dict[_Key, _Sum], hour: Hour, by: Sequence[str], prices: Prices | None) -> None:
    rows = {row.key: row for row in hour.rows if row.kind != "measured"}
    for row in rows.values():
        sums[_key(row, by)].use(row, prices)
    for row in allocated(hour.rows):
        if row.kind != "measured":
            sums[_key(row, by)].keep(row, rows.get(row.key), prices)


def _key(row: LedgerRow, by: Sequence[str]) -> _Key:
    return row.kind, tuple(row.hour[:_DAY] if name == "day" else getattr(row, name) for name in by)


def _by_kind(rows: Iterable[LedgerRow]) -> dict[str, float]:
    kinds = dict.fromkeys(_ORDER, 0.0)
    for row in rows:
        if row.kind in kinds:
            kinds[row.kind] += row.cpu_seconds
    return kinds


def _parts(amount: Amount) -> dict[str, float]:
    return {**amount._asdict(), "total": amount.total}


def _weight(line: Line) -> tuple[int, float, float, float, tuple[str, ...]]:
    cost = (line.cost or {}).get("total", 0.0)
    return _ORDER[line.kind], -cost, -line.cpu_seconds, -line.requests, tuple(line.names.values())
