"""The evidence of drift as it is kept beyond a start of the manager: a document for each model."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

import msgspec

from app.core.drift.spec import DriftSpec
from app.core.encoding import to_json
from deployments.drift.version import VersionDrift, VersionState

KEEP_S: Final = 30.0
"""Time from one document of a model to the next; a change of its alarm is kept at once."""
Key = tuple[str, int]


class KeptDrift(msgspec.Struct, frozen=True):
    """What is known of the versions of a model.

    Attributes:
        name: the model's identifier.
        changed_at: Unix seconds.
        versions: of each that is watched.
        reports: numbers of the last reports of ingresses that are added.
    """

    name: str
    changed_at: float
    versions: dict[int, "KeptVersion"] = {}
    reports: dict[str, int] = {}


class KeptVersion(msgspec.Struct, frozen=True):
    """A version: the reference and the rules by which it is watched, and what has come of that."""

    digest: str
    rules: DriftSpec
    state: VersionState


class Keeps(Protocol):
    """Keeps documents of models; a place that does not answer is logged there, and no failure."""

    async def read(self) -> dict[str, KeptDrift]:
        """Return the documents, by model."""

    async def write(self, name: str, small: bytes, whole: bytes) -> None:
        """Keep a document: see `deployments.rollout.storage.documents.Documents`."""


class _Written(NamedTuple):
    """When a document was made, and rows and the beginning of the alarm of each version in it."""

    at: float = -KEEP_S
    rows: Mapping[int, int] = {}
    alarms: Mapping[int, float] = {}


class DriftStates:
    """Goes on from what a manager before has kept, and keeps what this one knows.

    Args:
        kept: outlives the manager; None keeps nothing.
        clock: returns Unix seconds.
    """

    def __init__(self, kept: Keeps | None, clock: Callable[[], float]) -> None:
        self._kept, self._clock = kept, clock
        self._found: dict[Key, KeptVersion] = {}
        self._written: dict[str, _Written] = {}

    async def read(self) -> dict[str, int]:
        """Read what is kept; return the numbers of the last reports of ingresses that are in it."""
        reports: dict[str, int] = {}
        for name, document in (await self._kept.read()).items() if self._kept is not None else ():
            self._found |= {(name, version): each for version, each in document.versions.items()}
            for ingress, number in document.reports.items():
                reports[ingress] = max(number, reports.get(ingress, 0))
        return reports

    def go_on(self, key: Key, drift: VersionDrift) -> bool:
        """Give a version that is watched from now on what is kept of it, once; return whether it goes on.

        What was found by another reference, or other rules, is forgotten.
        """
        found = self._found.pop(key, None)
        if found is None or (found.digest, found.rules) != (drift.digest, drift.rules):
            return False
        return drift.go_on(found.state)

    async def keep(self, versions: Mapping[Key, VersionDrift], reports: Mapping[str, int]) -> None:
        """Keep what has changed."""
        if self._kept is None:
            return
        now = self._clock()
        by_model: dict[str, dict[int, VersionDrift]] = {}
        for (name, version), drift in versions.items():
            by_model.setdefault(name, {})[version] = drift
        # All are made at once: a report that comes meanwhile is in none of them.
        texts = {
            name: to_json(KeptDrift(name, now, _kept(found), dict(reports)))
            for name, found in by_model.items()
            if self._is_due(name, found, now)
        }
        for name, text in texts.items():
            await self._kept.write(name, text, text)

    def _is_due(self, name: str, versions: Mapping[int, VersionDrift], now: float) -> bool:
        """Return whether a model is to be written now, and take it as written."""
        rows = {version: each.rows for version, each in versions.items()}
        alarms = {version: each.since for version, each in versions.items()}
        before = self._written.get(name, _Written(rows=dict.fromkeys(rows, 0)))
        if rows == before.rows or (alarms == before.alarms and 0 <= now - before.at < KEEP_S):
            return False
        self._written[name] = _Written(now, rows, alarms)
        return True


def _kept(versions: Mapping[int, VersionDrift]) -> dict[int, KeptVersion]:
    return {number: KeptVersion(each.digest, each.rules, each.state) for number, each in versions.items()}
