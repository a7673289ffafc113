"""A cost report as one HTML page that needs no other file or server. Pure."""

from collections.abc import Iterator
from datetime import datetime
from html import escape
from typing import Final

from app.core.cost.allocation import UNALLOCATED
from app.core.cost.report import Line, Report
from nereid.commands.cost.text import about, conclusion, equation, figures, label, notes
from nereid_client.tools import charts
from nereid_client.tools.html_page import section
from nereid_client.tools.perf.report.page import chart_page, table

_BARS: Final = 12
_MOST: Final = 1000
"""Lines in the page's table."""
_GOOD: Final = 0.05
"""Difference of the reconciliation that is no fault."""
_HOUR_S: Final = 3600.0


def page(report: Report, when: str) -> str:
    """Return the page; `when` says when it was made."""
    difference = report.total.difference
    tone = "good" if difference is not None and abs(difference) <= _GOOD else "bad"
    head = f'<p class="soft">{escape(about(report))}; {escape(when)}</p>'
    head += f'<p class="{tone}">{escape(equation(report.total))}</p>'
    remarks = [*notes(report), *(conclusion(report) if len(report.nodes) > 1 else ())]
    return chart_page(
        f"Cost by {', '.join(report.by)}",
        head
        + f'<div class="pair">{"".join(_charts(report))}</div>'
        + section("All lines", _table(report))
        + section("Notes", "".join(f'<p class="soft">{escape(line)}</p>' for line in remarks)),
    )


def _table(report: Report) -> str:
    shapes = figures(report)
    rows = [[*label(line), *(shape.cell(line) for shape in shapes)] for line in report.lines[:_MOST]]
    return table([*report.by, *(shape.head for shape in shapes)], rows) if rows else ""


def _charts(report: Report) -> Iterator[str]:
    used = [line for line in report.lines if line.kind == "usage"][:_BARS]
    if used:
        yield section(
            "Used and allocated, core-seconds",
            charts.bars({_name(line): _core_hours(line) for line in used}, "core-s"),
        )
        if report.currency:
            parts = {_name(line): _money(line) for line in used}
            yield section(
                f"What usage costs, {report.currency}", charts.bars(_filled(parts), report.currency)
            )
    if len(report.hours) > 1:
        yield section("Processor time by hour", _timeline(report))
    node = {"the nodes": _shares(report)}
    yield section("Where the nodes' cores go, core-seconds", charts.bars(node, "core-s"))


def _name(line: Line) -> str:
    return " ".join(label(line))


def _core_hours(line: Line) -> dict[str, float]:
    more = max(line.allocated_core_seconds - line.cpu_seconds, 0.0)
    return {"used": line.cpu_seconds, "allocated beyond that": more}


def _money(line: Line) -> dict[str, float]:
    return {part: value for part, value in (line.cost or {}).items() if part != "total"}


def _filled(rows: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return rows without the parts that none of them has."""
    parts = [part for part in next(iter(rows.values())) if any(row[part] for row in rows.values())]
    return {name: {part: row[part] for part in parts} for name, row in rows.items()}


def _timeline(report: Report) -> str:
    began = datetime.fromisoformat(report.first)
    places = {hour: (datetime.fromisoformat(hour) - began).total_seconds() / _HOUR_S for hour in report.hours}
    series = {
        kind: [(places[hour], kinds[kind]) for hour, kinds in report.hours.items()]
        for kind in next(iter(report.hours.values()))
    }
    x = charts.linear([*places.values()], f"hours since {report.first[:16].replace('T', ' ')} UTC")
    y = charts.linear([value for points in series.values() for _, value in points], "core-seconds")
    return charts.lines(series, x, y)


def _shares(report: Report) -> dict[str, float]:
    """Return the allocation view of all nodes together."""
    shares = dict.fromkeys(("requests", "loaded, no requests", "overhead", "not allocated"), 0.0)
    for line in report.lines:
        name = {"usage": "requests", "overhead": "overhead"}.get(line.kind, "loaded, no requests")
        if line.names.get("model") == UNALLOCATED:
            name = "not allocated"
        shares[name] += max(line.allocated_core_seconds, 0.0)
    return shares
