"""What is served, with the counters of each version: a small answer a second, however many models there are.

Asking a replica costs 0.1 ms. Those that were busy lately are asked for each answer, the others in turn, and
an answer has only the versions that changed since the one that its reader names.
"""

import asyncio
import secrets
from collections.abc import Iterable, Sequence
from heapq import nsmallest
from time import monotonic, time
from typing import Final, Protocol

import msgspec

from app.core.observability.counters import VersionCounters
from app.core.observability.durations import FINE_S
from app.core.observability.statistics import ReplicaReport
from app.core.rollout.split import WHOLE
from app.routing.table import RoutingTable, VersionEntry

_EVERY_S: Final = 0.5
"""An answer is not older than this, and not made more often."""
_AT_ONCE: Final = 64
"""Idle versions asked for an answer."""
_TOGETHER: Final = 16
"""Versions whose replicas are asked at the same time."""
_BUSY_S: Final = 15.0
"""A version whose counters have moved is asked each time for so long."""
_INDEX_S: Final = 10.0
"""From one index of the repository manager to the next, unless the routing table has changed."""

Index = Iterable[tuple[str, str, str, str]]


class VersionRow(msgspec.Struct, frozen=True):
    """A version of a model; `version` is "" for a model without one.

    Attributes:
        name, version, state, reason: as in the repository's index.
        kind: backend or platform, "ensemble" for one.
        batched, decoupled, sequences, idle: see `VersionEntry`.
        instances: of a replica.
        replicas: those that answer, on any node.
        weight: share of the requests without a version that it gets; None where it is not decided by one.
        load_s: how long its last load took; 0 if unknown.
        ready_at: since when it is READY, in Unix seconds; 0 if unknown.
        figures: None for a version that is not served.
    """

    name: str
    version: str
    state: str
    reason: str = ""
    kind: str = ""
    batched: bool = False
    decoupled: bool = False
    sequences: bool = False
    idle: bool = False
    instances: int = 0
    replicas: int = 0
    weight: float | None = None
    load_s: float = 0.0
    ready_at: float = 0.0
    figures: VersionCounters | None = None


class Overview(msgspec.Struct, frozen=True):
    """The changes since an earlier answer.

    Attributes:
        cursor: of this answer, for the next request.
        at: Unix seconds.
        ready: the server's readiness.
        bounds_s: upper bounds of the buckets of `VersionCounters`, in seconds.
        versions: those that changed.
        names: name and version of all; None if none came or went.
    """

    cursor: str
    at: float
    ready: bool
    bounds_s: Sequence[float]
    versions: Sequence[VersionRow]
    names: Sequence[tuple[str, str]] | None = None


class Served(Protocol):
    """The service, as an overview reads it."""

    @property
    def table(self) -> RoutingTable: ...

    def ready(self) -> bool: ...

    def observed(self, entry: VersionEntry) -> tuple[str, str, int]:
        """Return state, reason and the number of replicas that answer."""

    async def index(self) -> Index: ...

    async def reports(self, entries: list[VersionEntry]) -> list[tuple[VersionEntry, ReplicaReport]]: ...


class _Known:
    """A row, the number of the look that changed it, when its version was asked, and how long it is busy."""

    def __init__(self) -> None:
        self.row = VersionRow("", "", "")
        self.changed = 0
        self.busy_until = 0.0
        self.figures_at = 0.0
        self.entry: VersionEntry | None = None
        self.figures: VersionCounters | None = None


class Overviews:
    """Makes the answers of one process. Runs on the data-plane loop."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._epoch = secrets.token_hex(4)
        self._number = 0
        self._known: dict[tuple[str, str], _Known] = {}
        self._names_changed = 0
        self._looked = 0.0
        self._table = -1
        self._index: list[tuple[str, str, str, str]] = []
        self._indexed = 0.0
        self._look: asyncio.Task[None] | None = None

    async def since(self, cursor: str) -> Overview:
        """Return what has changed since the answer with this cursor, everything for another process's.

        Raises:
            InferError: the server's start has failed.
        """
        if self._look is None and monotonic() - self._looked >= _EVERY_S:
            self._look = asyncio.create_task(self._refresh())
            self._look.add_done_callback(self._looked_around)
        if self._look is not None:
            await asyncio.shield(self._look)
        epoch, _, number = cursor.partition(".")
        after = int(number) if epoch == self._epoch and number.isascii() and number.isdigit() else -1
        rows = [known.row for known in self._known.values() if known.changed > after]
        names = list(self._known) if self._names_changed > after else None
        at = f"{self._epoch}.{self._number}"
        return Overview(at, time(), self._served.ready(), FINE_S, rows, names)

    def _looked_around(self, look: asyncio.Task[None]) -> None:
        self._look = None
        if not look.cancelled() and look.exception() is None:  # else whoever waits is told
            self._looked = monotonic()

    async def _refresh(self) -> None:
        table = self._served.table
        table.require_started()
        await self._read_index(table)
        asked = self._asked(table)
        figures: dict[tuple[str, str], VersionCounters] = {}
        for first in range(0, len(asked), _TOGETHER):  # requests are served between two of them
            reports = await self._served.reports(asked[first : first + _TOGETHER])
            figures |= {
                (entry.name, str(entry.version)): VersionCounters.of(report) for entry, report in reports
            }
        now, listed = monotonic(), self._listed(table)
        self._number += 1
        for key, (entry, row) in listed.items():
            self._note(key, entry, row, figures.get(key), now)
        gone = self._known.keys() - listed.keys()
        for key in gone:
            del self._known[key]
        if gone:
            self._names_changed = self._number

    async def _read_index(self, table: RoutingTable) -> None:
        if table.number == self._table and monotonic() - self._indexed < _INDEX_S:
            return
        self._table, self._indexed = table.number, monotonic()
        self._index = list(await self._served.index())

    def _asked(self, table: RoutingTable) -> list[VersionEntry]:
        """Return the versions whose replicas are asked now."""
        now = monotonic()
        busy: list[VersionEntry] = []
        idle: list[tuple[float, int, VersionEntry]] = []
        for number, entry in enumerate(table.ready):
            if not (entry.application or entry.ensemble):  # it is idle, and has no replica
                continue
            known = self._known.get((entry.name, str(entry.version)))
            if known is None or known.figures is None or known.busy_until > now:
                busy.append(entry)
            else:
                idle.append((known.figures_at, number, entry))
        return busy + [entry for *_, entry in nsmallest(_AT_ONCE, idle)]

    def _listed(self, table: RoutingTable) -> dict[tuple[str, str], tuple[VersionEntry | None, VersionRow]]:
        found: dict[tuple[str, str], tuple[VersionEntry | None, VersionRow]] = {
            (name, version): (None, VersionRow(name, version, state, reason))
            for name, version, state, reason in self._index
        }
        for entry in table.entries:
            key = (entry.name, "" if entry.version < 0 else str(entry.version))
            found[key] = (entry, self._row(key, entry, table))
        return found

    def _row(self, key: tuple[str, str], entry: VersionEntry, table: RoutingTable) -> VersionRow:
        state, reason, replicas = self._served.observed(entry)
        known, weight = self._known.get(key), _weight(entry, table)
        if known is not None and known.entry is entry:
            row = known.row
            if (row.state, row.reason, row.replicas, row.weight) == (state, reason, replicas, weight):
                return row
        config = entry.model_config
        return VersionRow(
            entry.name,
            key[1],
            state,
            reason,
            "ensemble" if entry.ensemble else config.backend or config.platform,
            entry.batched,
            entry.decoupled,
            entry.keeps_sequences,
            entry.idle,
            entry.instances,
            replicas,
            weight,
            entry.load_seconds,
            entry.ready_at,
        )

    def _note(
        self,
        key: tuple[str, str],
        entry: VersionEntry | None,
        row: VersionRow,
        figures: VersionCounters | None,
        now: float,
    ) -> None:
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _Known()
            self._names_changed = self._number
        known.entry = entry
        if figures is not None:
            known.figures_at = now
            if known.figures is None or _counts(known.figures) != _counts(figures):
                known.busy_until = now + _BUSY_S
            elif known.busy_until <= now:
                figures = known.figures  # nothing new: the row stays as it is
            known.figures = figures
        if row.state != "READY":
            known.figures = None
        row = row if row.figures is known.figures else msgspec.structs.replace(row, figures=known.figures)
        if row != known.row:
            known.row, known.changed = row, self._number


def _counts(figures: VersionCounters) -> tuple[int, ...]:
    return figures.ok, figures.failed, figures.executions, figures.pending, figures.restarts


def _weight(entry: VersionEntry, table: RoutingTable) -> float | None:
    """Return the share of a model's requests that a version gets in a rollout."""
    split = table.split_by_name.get(entry.name)
    if split is None or entry.version not in (split.stable, split.candidate):
        return None
    share = split.weight / WHOLE
    return share if entry.version == split.candidate else 1 - share
