"""A cost report as text for a terminal. Pure."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from app.core.cost.reconcile import Reconciliation
from app.core.cost.report import Line, Report
from nereid.commands.columns import columns, printable

SHOWN: Final = 40
"""Lines in the table; the others are in --csv, --html and --json."""
NOBODY: Final = "(no token)"
_HOUR_S: Final = 3600.0
_WH: Final = 3600.0


class Column(NamedTuple):
    """A column of figures: its head, and its text in a line; one without a text in any line is not shown."""

    head: str
    cell: Callable[[Line], str]


def figures(report: Report) -> list[Column]:
    """Return the columns of a report: what was used, then what was allocated."""
    money = report.currency
    found = [
        Column("requests", lambda line: f"{line.requests:,}" if line.requests else ""),
        Column("rows", lambda line: f"{line.rows:,}" if line.rows else ""),
        Column("core-s", lambda line: amount(line.cpu_seconds)),
        Column("GiB-h", lambda line: amount(line.memory_gib_seconds / _HOUR_S)),
        Column("GPU-s", lambda line: amount(line.gpu_seconds) if line.gpu_seconds else ""),
        Column("Wh", _energy),
        Column(f"usage {money}", lambda line: _money(line.cost)),
        Column("alloc. core-s", lambda line: amount(line.allocated_core_seconds)),
        Column("alloc. GiB-h", lambda line: amount(line.allocated_gib_seconds / _HOUR_S)),
        Column(f"alloc. {money}", lambda line: _money(line.allocated_cost)),
    ]
    return [column for column in found if any(map(column.cell, report.lines))]


def screen(report: Report) -> list[str]:
    """Return the lines that show a report."""
    if not report.hours:
        return ["the ledger has no hour of that time"]
    shown, shapes = report.lines[:SHOWN], figures(report)
    head = [*report.by, *(column.head for column in shapes)]
    rows = [_cells(line, shapes) for line in shown]
    lines = [about(report), "", *_aligned([head, *rows, _totals(report, shapes)], len(report.by))]
    left = len(report.lines) - len(shown)
    lines += [f"and {left:,} more lines: --csv, --html and --json have them"] if left > 0 else []
    return [printable(line) for line in [*lines, "", *notes(report), *conclusion(report)]]


def about(report: Report) -> str:
    """Say which time and how many nodes a report is of."""
    nodes = f"{len(report.nodes)} node{'s' if len(report.nodes) != 1 else ''}"
    hours = f"{len(report.hours)} hour{'s' if len(report.hours) != 1 else ''}"
    first, last = (text[:16].replace("T", " ") for text in (report.first, report.last))
    return f"{hours} with figures, that of {first} to that of {last} UTC; {nodes}"


def notes(report: Report) -> Iterator[str]:
    """Yield what has to be known to read the figures."""
    if not any(line.energy_joules for line in report.lines):
        yield "energy: unknown on these machines (watts_per_core in a price file gives an estimate)"
    elif any(line.energy_estimated for line in report.lines):
        yield "Wh with ~ are estimates, by watts_per_core of the price file"
    if not report.currency:
        yield "--prices FILE adds what that costs"
    if report.broken:
        yield f"{report.broken:,} lines of the ledger could not be read, and are in no figure"


def conclusion(report: Report) -> Iterator[str]:
    """Yield the reconciliation: of each node if there are several, and of all."""
    if len(report.nodes) > 1:
        for node, found in report.nodes.items():
            yield f"{node}: {equation(found)}"
    yield equation(report.total)


def equation(found: Reconciliation) -> str:
    """Return what was given to somebody beside what was measured, in core-seconds."""
    parts = f"attributed {found.attributed:,.1f} + idle {found.idle:,.1f} + overhead {found.overhead:,.1f}"
    if found.difference is None:
        return f"{parts} = {found.told:,.1f} core-seconds; nothing was measured to compare it with"
    text = f"{parts} = {found.told:,.1f} core-seconds, measured {found.measured:,.1f}"
    return f"{text}: difference {100 * found.difference:.2f} %".replace(" -0.00 ", " 0.00 ")


def label(line: Line) -> list[str]:
    """Return the names of a line; its kind stands where a client, or else the first name, would."""
    if line.kind == "usage":
        return [name or (NOBODY if field == "token" else "-") for field, name in line.names.items()]
    names = list(line.names.items())
    place = next((at for at, (field, _) in enumerate(names) if field == "token"), None)
    if place is None:
        first = names[0][1] if names else ""
        return [f"{line.kind} {first}".strip(), *(name or "-" for _, name in names[1:])]
    return [line.kind if at == place else name or "-" for at, (_, name) in enumerate(names)]


def amount(value: float) -> str:
    """Return a figure with three digits that count."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 else f"{value:.1g}"


def _money(cost: dict[str, float] | None) -> str:
    if cost is None:
        return ""
    total = cost["total"]
    return f"{total:,.4f}" if abs(total) >= 0.01 or not total else f"{total:.2g}"


def _energy(line: Line) -> str:
    if not line.energy_joules:
        return ""
    return ("~" if line.energy_estimated else "") + amount(line.energy_joules / _WH)


def _cells(line: Line, shapes: Sequence[Column]) -> list[str]:
    return [*label(line), *(column.cell(line) for column in shapes)]


def total(report: Report) -> Line:
    """Return all lines as one."""
    sums = {
        name: sum(getattr(line, name) for line in report.lines)
        for name in Line.__struct_fields__
        if isinstance(getattr(report.lines[0], name), int | float)
    }
    energies = [line.energy_joules for line in report.lines]
    return Line(
        **{
            **sums,
            "kind": "usage",
            "names": dict.fromkeys(report.by, ""),
            "energy_joules": None if None in energies else sum(filter(None, energies)),
            "energy_estimated": any(line.energy_estimated for line in report.lines),
            "cost": _sum([line.cost for line in report.lines]),
            "allocated_cost": _sum([line.allocated_cost for line in report.lines]),
        }
    )


def _sum(costs: Sequence[dict[str, float] | None]) -> dict[str, float] | None:
    known = [cost for cost in costs if cost is not None]
    return {part: sum(cost[part] for cost in known) for part in known[0]} if known else None


def _totals(report: Report, shapes: Sequence[Column]) -> list[str]:
    line = total(report)
    blank = [""] * (len(report.by) - 1)
    return ["total", *blank, *(column.cell(line) for column in shapes)][: len(report.by) + len(shapes)]


def _aligned(rows: Sequence[Sequence[str]], names: int) -> list[str]:
    """Return rows as lines: names to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = [[cell if at < names else cell.rjust(widths[at]) for at, cell in enumerate(row)] for row in rows]
    return columns(padded).split("\n")
