"""How the manager words what it has done: the table at the end of the start, and a load that failed."""

from collections.abc import Iterable

from app.routing.table import NO_VERSION, RoutingTable, VersionEntry


def load_failure(name: str, failed: Iterable[VersionEntry]) -> str:
    """The error of a load of which some versions failed."""
    parts = "".join(f"version {e.version} is at {e.state.value} state: {e.reason};\n" for e in failed)
    return f"load failed for model '{name}': {parts}"


def status_table(table: RoutingTable) -> str:
    """Models, versions and states as tritonserver prints them at the end of its start."""
    rows = [("Model", "Version", "Status")]
    for entry in sorted(table.entries, key=lambda e: (e.name, e.version)):
        status = entry.state.value + (f": {entry.reason}" if entry.reason else "")
        rows.append((entry.name, "" if entry.version == NO_VERSION else str(entry.version), status))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in rows]
    return "\n".join([rule, lines[0], rule, *lines[1:], rule])
