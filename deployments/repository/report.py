"""What the manager tells of loads: error texts and the table of the start, in Triton's words."""

from collections.abc import Iterable

from app.routing.table import NO_VERSION, RoutingTable, VersionEntry


def load_failure(failed: Iterable[VersionEntry]) -> str:
    """Why the load of a model failed, version by version."""
    texts: dict[str, str] = {}
    for entry in failed:
        text = f"version {entry.version} is at {entry.state.value} state: {entry.reason};\n"
        texts[entry.name] = texts.get(entry.name, "") + text
    return "\n".join(f"load failed for model '{name}': {text}" for name, text in texts.items())


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
