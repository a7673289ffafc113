"""Entries, error texts and log messages of loads, with Triton's texts."""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from app.core.errors import InferError, invalid_arg
from app.routing.table import NO_VERSION, ModelState, RoutingTable, VersionEntry
from deployments.model_store.layout import ModelEntry
from deployments.spec import Description

logger = logging.getLogger(__name__)

_PROGRESS_S: Final = 5.0


def index_rows(
    entries: Iterable[VersionEntry], on_disk: Mapping[str, ModelEntry]
) -> list[tuple[str, str, str, str]]:
    """Return name, version, state and reason of every version, and names of models that were never loaded."""
    rows: list[tuple[str, str, str, str]] = []
    known = set()
    for entry in entries:
        known.add(entry.name)
        absent = entry.version == NO_VERSION or entry.unloaded_by_request
        unread = on_disk.get(entry.name) if absent else None
        number = "" if entry.version == NO_VERSION else str(entry.version)
        reason = (unread.reason if unread else "") or entry.reason
        rows.append((entry.name, number, entry.state.value, reason))
    for name, model in on_disk.items():
        if name not in known:
            rows.append((name, "", "UNAVAILABLE" if model.reason else "", model.reason))
    return sorted(rows)


def ready_entry(description: Description) -> VersionEntry:
    """Return the entry of a version that has loaded."""
    spec = description.spec
    return VersionEntry(
        spec.identifier,
        spec.version,
        ModelState.READY,
        application=spec.application,
        config=description.config,
        labels=description.labels,
        load_seconds=description.load_seconds,
        makes_calls=description.makes_calls,
    )


def version_failure(description: Description) -> InferError:
    """Return the error of a failed change of a version, which stays in service as it was."""
    name, version = description.spec.identifier, description.spec.version
    return invalid_arg(f"load failed for model '{name}': version {version}: {description.error};\n")


def failed_entries(name: str, entries: Sequence[VersionEntry], reason: str) -> list[VersionEntry]:
    """Return the entries of a model that failed to load; READY ones stay so and get the reason."""
    known = list(entries) or [VersionEntry(name, NO_VERSION, ModelState.UNAVAILABLE)]
    ready = [entry for entry in known if entry.state is ModelState.READY]
    if ready:
        return [msgspec.structs.replace(entry, reason=f"update failed: {reason}") for entry in ready]
    return [VersionEntry(name, entry.version, ModelState.UNAVAILABLE, reason) for entry in known]


async def report_progress(names: Sequence[str], entries: Mapping[str, Mapping[int, VersionEntry]]) -> None:
    """Log every few seconds which of these models are still loading, until cancelled."""
    while True:
        await asyncio.sleep(_PROGRESS_S)
        waiting = [
            name
            for name in names
            if all(entry.state is ModelState.LOADING for entry in entries.get(name, {}).values())
        ]
        done = len(names) - len(waiting)
        logger.info("loading models: %d of %d done, waiting for %s", done, len(names), ", ".join(waiting))


def load_failure(name: str, entries: Iterable[VersionEntry]) -> str:
    """Return why the load of a model failed, version by version; "" when it did not."""
    failed = "".join(
        f"version {entry.version} is at {entry.state.value} state: {entry.reason};\n"
        for entry in entries
        if entry.name == name and entry.state is ModelState.UNAVAILABLE and not entry.unloaded_by_request
    )
    return f"load failed for model '{name}': {failed}" if failed else ""


def status_table(table: RoutingTable) -> str:
    """Return models, versions and states as tritonserver prints them at the end of its start."""
    rows = [("Model", "Version", "Status")]
    for entry in sorted(table.entries, key=lambda e: (e.name, e.version)):
        status = entry.state.value + (f": {entry.reason}" if entry.reason else "")
        rows.append((entry.name, "" if entry.version == NO_VERSION else str(entry.version), status))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in rows]
    return "\n".join([rule, lines[0], rule, *lines[1:], rule])
