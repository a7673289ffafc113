"""Watches all models for drift: adds up what ingresses count, tests it, and says what has changed."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from app.core.drift.counts import (
    MOST_WATCHED,
    PERIOD_S,
    DriftAnswer,
    DriftReport,
    KnownReference,
    VersionCounts,
)
from app.core.drift.spec import DriftSpec
from app.core.drift.status import DriftStatus
from app.core.errors import not_found, unavailable
from app.core.identifiers import name_of
from app.core.observability.reporter import ReportNumbers
from app.routing.table import ModelState, VersionEntry
from deployments.drift.kept import DriftStates, Keeps
from deployments.drift.references import Known, References
from deployments.drift.version import VersionDrift

logger = logging.getLogger(__name__)

pause: Final = asyncio.sleep

Key = tuple[str, int]


class Sources(NamedTuple):
    """What a monitor reads of the manager.

    Attributes:
        entries: returns every version.
        directory: returns the directory of a model; None if it is nowhere. It blocks on the disk.
        changed: tells ingresses that there are other references.
    """

    entries: Callable[[], Iterable[VersionEntry]]
    directory: Callable[[str], Path | None]
    changed: Callable[[], Awaitable[object]]


class DriftMonitor:
    """The drift of the versions that are READY and have a reference, for the first 256 of them.

    Args:
        sources: what is read of the manager.
        kept: has what a manager before has found, and keeps what this one finds; None keeps nothing.
        clock: returns Unix seconds.
    """

    def __init__(
        self, sources: Sources, kept: Keeps | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._sources = sources
        self._clock = clock
        self._states = DriftStates(kept, clock)
        self._begun = self._looked = False
        self._references = References(sources.directory)
        self._versions: dict[Key, VersionDrift] = {}
        self._reports = ReportNumbers()
        self._crowded = False

    async def run(self, is_stopping: Callable[[], bool]) -> None:
        """Go on from what is kept; look for references, test and keep what has come, every ten seconds."""
        await self.begin()
        while not is_stopping():
            try:
                await self.step()
            except Exception:
                logger.exception("watching models for drift")
            await pause(PERIOD_S)

    async def begin(self) -> None:
        """Go on from what is kept; before, nothing is watched and no report is taken."""
        try:
            self._reports = ReportNumbers(await self._states.read())
        except Exception:
            logger.exception("reading what is known of drift")
        self._begun = True

    async def step(self) -> None:
        """Look for references, test what has come, and keep what was found."""
        await self.look()
        await self.test()
        await self._states.keep(self._versions, self._reports.last)

    async def look(self) -> None:
        """Read the references that are new, and forget those that are gone; tell ingresses of that."""
        if not self._begun:
            return
        ready = [each for each in self._sources.entries() if each.state is ModelState.READY]
        found = await asyncio.to_thread(self._references.find, {entry.name for entry in ready})
        watched = {(entry.name, entry.version): entry for entry in ready if entry.name in found}
        keys = sorted(watched)
        if len(keys) > MOST_WATCHED and not self._crowded:
            logger.warning("%d versions have references; %d of them are watched", len(keys), MOST_WATCHED)
        self._crowded = len(keys) > MOST_WATCHED
        before = self._versions
        self._versions = {
            key: self._watched(key, found[key[0]], watched[key].drift or DriftSpec())
            for key in keys[:MOST_WATCHED]
        }
        self._looked = True
        if self._versions != before:
            await self._sources.changed()

    def _watched(self, key: Key, known: Known, spec: DriftSpec) -> VersionDrift:
        old = self._versions.get(key)
        digest = f"{known.digest}:{key[1]}"  # versions share the file, and have outputs of their own in it
        if old is not None and (old.digest, old.rules) == (digest, spec):
            return old
        new = VersionDrift(digest, known.reference.of(key[1]), spec)
        again = " again, with what was found before" if self._states.go_on(key, new) else ""
        logger.info("model '%s' version %d is watched for drift%s", name_of(key[0]), key[1], again)
        return new

    async def test(self) -> None:
        """Test what has come of every version."""
        for (name, version), drift in list(self._versions.items()):
            if drift.test(self._clock()):
                _log(name_of(name), version, drift)
            await asyncio.sleep(0)  # other calls of the manager are answered between two versions

    def report(self, report: DriftReport) -> DriftAnswer:
        """Add what an ingress has counted, once; return what is to be counted, and all figures.

        Raises:
            InferError: UNAVAILABLE before the first look; a report comes again.
        """
        if not self._looked:
            raise unavailable("the manager has not read its references yet")
        if self._reports.add(report.ingress, report.number):
            for counts in report.versions:
                self._add(counts)
        known = {*report.known}
        references = [
            KnownReference(*key, each.digest, None if each.digest in known else each.reference)
            for key, each in self._versions.items()
        ]
        figures = (each.figures(*key) for key, each in self._versions.items())
        return DriftAnswer(tuple(references), tuple(figures))

    def _add(self, counted: VersionCounts) -> None:
        drift = self._versions.get((counted.model, counted.version))
        if drift is not None and drift.digest == counted.reference:
            drift.add(counted.counts)

    def status(self, name: str, version: str = "") -> DriftStatus:
        """Return the drift of a version of a model, by default of the newest that is watched.

        Raises:
            InferError: NOT_FOUND for one that has no reference.
        """
        versions = [number for model, number in self._versions if model == name]
        wanted = [number for number in versions if version in ("", str(number))]
        if not wanted:
            which = f"version {version} of model '{name_of(name)}'" if version else f"model '{name_of(name)}'"
            raise not_found(
                f"{which} is not watched for drift: it is not ready, or has no drift.json, which "
                f"'nereid drift reference {name_of(name)}' makes; a new one is used within {PERIOD_S:.0f} s"
            )
        return self._versions[name, max(wanted)].status(name_of(name), max(wanted))

    def marked(self, rows: Iterable[tuple[str, str, str, str]]) -> list[tuple[str, str, str, str]]:
        """Return rows of the repository's index with the alarms of READY versions in their reasons."""
        return [
            (name, version, state, "; ".join(filter(None, (reason, self._alarm(name, version, state)))))
            for name, version, state, reason in rows
        ]

    def _alarm(self, name: str, version: str, state: str) -> str:
        drift = self._versions.get((name, int(version))) if version.isdecimal() else None
        if drift is None or not drift.since or state != ModelState.READY.value:
            return ""
        return f"drift: {_listed(drift.alarms)}"


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _log(model: str, version: int, drift: VersionDrift) -> None:
    if drift.since:
        text = "model '%s' version %d: requests differ from the reference in %s ('nereid drift %s' shows how)"
        logger.warning(text, model, version, _listed(drift.alarms), model)
    else:
        logger.info("model '%s' version %d: requests are like the reference again", model, version)
