"""A cost report as CSV, for spreadsheets. Pure."""

import csv
from io import StringIO
from typing import Any, Final

import msgspec

from app.core.cost.report import Line, Report

_TABLES: Final = ("names", "cost", "allocated_cost")
"""Fields of a line that become several columns."""


def csv_text(report: Report) -> str:
    """Return a row for each line, under the names that --json has; what is not known is empty."""
    rows = [_row(line) for line in report.lines]
    names = list(dict.fromkeys(name for row in rows for name in row)) or ["kind", *report.by]
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_safe(row.get(name, "")) for name in names] for row in rows)
    return text.getvalue()


def _row(line: Line) -> dict[str, Any]:
    """Return a line without tables in it: `cost` becomes `cost_cpu`, `cost_memory` and so on."""
    plain = msgspec.structs.asdict(line)
    row = {"kind": line.kind, **line.names}
    row |= {name: value for name, value in plain.items() if name not in (*_TABLES, *row)}
    for name in ("cost", "allocated_cost"):
        row |= {f"{name}_{part}": value for part, value in (plain[name] or {}).items()}
    return {name: "" if value is None else value for name, value in row.items()}


def _safe(value: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula: names are others' texts."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
