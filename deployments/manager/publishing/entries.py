"""The state of every model version, of which routing tables are made."""

import time
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from app.core.drift.spec import DriftSpec
from app.core.tape.spec import TapeSpec
from app.routing.table import NO_VERSION, ModelState, VersionEntry
from deployments.manager.publishing.ensembles import effective
from deployments.spec import Description, ModelSpec


class Policies(NamedTuple):
    """The treatment of a model's requests by ingresses, as its files say; without a file by the server's way.

    Attributes:
        tape: what of them is recorded.
        drift: how they are watched.
    """

    tape: TapeSpec | None = None
    drift: DriftSpec | None = None


class Entries:
    """The entries of all models.

    Attributes:
        entries: by model and version.
        loaded: the specs of the deployed versions, by application.
        policies: how ingresses treat the requests of models, by model.
    """

    def __init__(self) -> None:
        self.entries: dict[str, dict[int, VersionEntry]] = {}
        self.loaded: dict[str, ModelSpec] = {}
        self.policies: dict[str, Policies] = {}

    @property
    def effective(self) -> tuple[VersionEntry, ...]:
        """All entries, with each ensemble in the state that the models it calls allow."""
        entries = effective(self.entries)
        return (
            tuple([self._treated(e) for e in entries]) if any(map(any, self.policies.values())) else entries
        )

    def _treated(self, entry: VersionEntry) -> VersionEntry:
        """Return an entry as it is published: with how its requests are treated."""
        policies = self.policies.get(entry.name)
        if policies is None or not any(policies):
            return entry
        return msgspec.structs.replace(entry, tape=policies.tape, drift=policies.drift)

    def versions(self, name: str) -> list[VersionEntry]:
        """Return the entries of a model."""
        return list(self.entries.get(name, {}).values())

    def running(self, name: str) -> dict[int, ModelSpec | None]:
        """Return the specs of the READY versions of a model; None for that of an ensemble."""
        ready = ModelState.READY
        return {e.version: self.loaded.get(e.application) for e in self.versions(name) if e.state is ready}

    def ready(self, name: str) -> list[int]:
        """Return the READY versions of a model."""
        return [*self.running(name)]

    def ready_entry(self, name: str, version: int) -> VersionEntry | None:
        entry = self.entries.get(name, {}).get(version)
        return entry if entry is not None and entry.state is ModelState.READY else None

    def serve(self, description: Description) -> None:
        """Make a deployed version READY in the next table."""
        self.loaded[description.spec.application] = description.spec
        self.set_entry(ready_entry(description))

    def set_entry(self, entry: VersionEntry) -> None:
        """Replace the entry of a version."""
        versions = self.entries.setdefault(entry.name, {})
        if entry.version != NO_VERSION:
            versions.pop(NO_VERSION, None)
        versions[entry.version] = entry


def ready_entry(description: Description) -> VersionEntry:
    """Return the entry of a version that has loaded."""
    spec = description.spec
    return VersionEntry(
        spec.identifier,
        spec.version,
        ModelState.READY,
        application=spec.application,
        content=blake2b(spec.fingerprint.encode() + description.config, digest_size=16).hexdigest(),
        config=description.config,
        labels=description.labels,
        load_seconds=description.load_seconds,
        makes_calls=description.makes_calls,
        ready_at=time.time(),
        text=description.text,
    )
