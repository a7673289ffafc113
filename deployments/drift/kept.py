"""The evidence of drift as it is kept beyond a start of the manager: a document for each model."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

import msgspec

from app.core.drift.spec import DriftSpec
from app.core.encoding import to_json
from deployments.drift.version import VersionDrift, VersionState

KEEP_S: Final = 30.0
"""Time from one document of a model to the next; a change of its alarm is kept at once."""
FEW_ROWS: Final = 0.01
LATE_S: Final = 10 * KEEP_S
"""That time where fewer rows have come than this part of all."""
STEP_BYTES: Final = 640 << 10
"""No further document is made in a step after so many bytes; what is left goes first in the next one."""
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

    async def write(self, name: str, small: bytes, whole: bytes) -> bool:
        """Keep a document; return whether it is: see `deployments.rollout.storage.documents.Documents`."""


class _Written(NamedTuple):
    """When a document was made last; of the last that was kept, the rows and alarms of its versions.

    Attributes:
        at: Unix seconds.
        rows: of versions that have any.
        alarms: when they began, of versions that have one.
    """

    at: float
    rows: Mapping[int, int]
    alarms: Mapping[int, float]


_NEVER: Final = _Written(-LATE_S, {}, {})


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
        by_model: dict[str, dict[int, VersionDrift]] = {}
        for (name, version), drift in versions.items():
            by_model.setdefault(name, {})[version] = drift
        for name, text, made in self._documents(by_model, reports):
            if not await self._kept.write(name, text, text):
                made = self._before(name)._replace(at=made.at)
            self._written[name] = made

    def _documents(
        self, models: Mapping[str, Mapping[int, VersionDrift]], reports: Mapping[str, int]
    ) -> list[tuple[str, bytes, _Written]]:
        """Make the documents of a step, all at once: a report that comes meanwhile is in none of them."""
        now, made, size = self._clock(), [], 0
        found = {name: _written(versions, now) for name, versions in models.items()}
        for name in self._due(found, now):
            text = to_json(KeptDrift(name, now, _kept(models[name]), dict(reports)))
            made.append((name, text, found[name]))
            size += len(text)
            if size >= STEP_BYTES:
                break
        return made

    def _due(self, models: Mapping[str, _Written], now: float) -> list[str]:
        """Return the models to keep now: those whose alarm has changed, then those that wait for longest."""
        turns = []
        for name, found in models.items():
            before, total = self._before(name), sum(found.rows.values())
            few = 0 <= total - sum(before.rows.values()) < FEW_ROWS * total
            waits = 0 <= now - before.at < (LATE_S if few else KEEP_S)
            same = found.alarms == before.alarms
            if found.rows != before.rows and not (same and waits):
                turns.append((same, before.at, name))
        return [name for *_, name in sorted(turns)]

    def _before(self, name: str) -> _Written:
        return self._written.get(name, _NEVER)


def _written(versions: Mapping[int, VersionDrift], now: float) -> _Written:
    """Return what a document that is made now has."""
    rows = {version: each.rows for version, each in versions.items() if each.rows}
    return _Written(now, rows, {version: each.since for version, each in versions.items() if each.since})


def _kept(versions: Mapping[int, VersionDrift]) -> dict[int, KeptVersion]:
    return {number: KeptVersion(each.digest, each.rules, each.state) for number, each in versions.items()}
