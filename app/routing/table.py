"""The routing table: what the repository manager publishes and every ingress routes by.

A table is immutable and numbered; a newer one replaces it whole.
"""

from enum import StrEnum
from functools import cached_property

import msgspec
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import TensorSpec, input_specs, output_specs
from app.core.config.version_policy import parse_version
from app.core.errors import InferError, invalid_arg, not_found, unavailable
from app.core.identifiers import name_of
from app.core.live_settings import LiveSettings
from app.core.sequences import keeps_sequences

NO_VERSION = -1


class ModelState(StrEnum):
    """Triton's model states; each says what holds when it is reported."""

    UNKNOWN = "UNKNOWN"
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


class VersionEntry(msgspec.Struct, frozen=True, dict=True):
    """One version of a model as the manager sees it.

    `name` identifies the model (`app.core.identifiers`); `model` is what clients call it.
    `version` is `NO_VERSION` for a model of which no version could even be tried (a bad configuration, say).
    `application` names the Serve application that serves it ("" when none does, as with an ensemble).
    `config` is the serialised, complete ModelConfig (empty until a load succeeded once). `labels` maps an
    output to its class labels. `makes_calls` tells that it may call other models from its replicas.
    """

    name: str
    version: int
    state: ModelState
    reason: str = ""
    application: str = ""
    config: bytes = b""
    labels: dict[str, tuple[str, ...]] = {}
    load_seconds: float = 0.0
    makes_calls: bool = False

    @cached_property
    def model(self) -> str:
        """The model's name without its namespace."""
        return name_of(self.name)

    @cached_property
    def model_config(self) -> mc.ModelConfig:
        """`config` parsed, once."""
        return mc.ModelConfig.FromString(self.config)

    @cached_property
    def decoupled(self) -> bool:
        """Whether a request may have any number of responses."""
        return bool(self.model_config.model_transaction_policy.decoupled)

    @cached_property
    def batched(self) -> bool:
        """Whether the first dimension of its tensors is a batch dimension."""
        return bool(self.model_config.max_batch_size > 0)

    @cached_property
    def keeps_sequences(self) -> bool:
        """Whether the requests of a sequence must meet at one replica."""
        return keeps_sequences(self.model_config)

    @cached_property
    def sequence_idle_s(self) -> float:
        """How long a sequence may rest, in seconds."""
        return float(self.model_config.sequence_batching.max_sequence_idle_microseconds) / 1e6

    @cached_property
    def ensemble(self) -> bool:
        """Whether it is a plan of calls to other models, without a replica of its own."""
        return bool(self.model_config.HasField("ensemble_scheduling"))

    @cached_property
    def inputs(self) -> dict[str, TensorSpec]:
        """Inputs by name."""
        return {spec.name: spec for spec in input_specs(self.model_config)}

    @cached_property
    def outputs(self) -> dict[str, TensorSpec]:
        """Outputs by name."""
        return {spec.name: spec for spec in output_specs(self.model_config)}

    @property
    def deliberately_unloaded(self) -> bool:
        """Unloaded on request, which does not make the server unready (strict readiness)."""
        return self.state is ModelState.UNAVAILABLE and self.reason == "unloaded"


class RoutingTable(msgspec.Struct, frozen=True, dict=True):
    """All models known to the manager. `initialised` is set once the loads of the start-up are over.

    `live` is None while the manager has no say: each ingress goes on by the settings it has. With
    `namespacing` a name may mean several models (`--model-namespacing`).
    """

    number: int = 0
    initialised: bool = False
    entries: tuple[VersionEntry, ...] = ()
    live: LiveSettings | None = None
    namespacing: bool = False

    @cached_property
    def by_name(self) -> dict[str, dict[int, VersionEntry]]:
        """Entries by identifier of the model, then version in ascending order."""
        models: dict[str, dict[int, VersionEntry]] = {}
        for entry in sorted(self.entries, key=lambda entry: entry.version):
            versions = models.setdefault(entry.name, {})
            if entry.version != NO_VERSION:
                versions[entry.version] = entry
        return models

    @cached_property
    def all_ready(self) -> bool:
        """Whether every version is READY or was unloaded on request (Triton's strict readiness)."""
        return all(entry.state is ModelState.READY or entry.deliberately_unloaded for entry in self.entries)

    @cached_property
    def ready(self) -> tuple[VersionEntry, ...]:
        """READY entries, by name and version."""
        found = (entry for entry in self.entries if entry.state is ModelState.READY)
        return tuple(sorted(found, key=lambda entry: (entry.name, entry.version)))

    @cached_property
    def applications(self) -> dict[str, VersionEntry]:
        """READY entries by Serve application name; ensembles have none."""
        return {entry.application: entry for entry in self.ready if entry.application}

    @cached_property
    def _loaded(self) -> dict[str, tuple[str, ...]]:
        """Identifiers by model name, of what is loaded or was to be."""
        found: dict[str, tuple[str, ...]] = {}
        for key, versions in sorted(self.by_name.items()):
            if not all(entry.deliberately_unloaded for entry in versions.values()):
                name = name_of(key)
                found[name] = (*found.get(name, ()), key)
        return found

    def identify(self, name: str) -> str:
        """The identifier that a client's name means; with namespacing, an identifier means itself.

        Raises:
            InferError: INVALID_ARG with namespacing, when the name means no model or several.
        """
        if not self.namespacing or "/" in name:
            return name
        found = self._loaded.get(name, ())
        if len(found) == 1:
            return found[0]
        if not found:
            raise invalid_arg(_unknown(name))
        raise invalid_arg(
            f"There are {len(found)} identifiers of model '{name}' in global map, model namespace must be "
            "provided to resolve ambiguity."
        )

    def versions(self, name: str) -> dict[int, VersionEntry] | None:
        """Versions of the model that a client's name means; None when it means none, or several."""
        try:
            return self.by_name.get(self.identify(name))
        except InferError:
            return None

    @cached_property
    def _resolved(self) -> dict[tuple[str, str], VersionEntry]:
        return {}

    def ready_versions(self, name: str) -> list[int]:
        """Versions of a model at READY state, ascending; empty for an unknown model."""
        versions = self.versions(name) or {}
        return [number for number, entry in versions.items() if entry.state is ModelState.READY]

    def resolve(self, name: str, version: str = "") -> VersionEntry:
        """Choose the version that answers a request; "" is the highest READY version.

        The only place that chooses a version. Called once for each request, at the edge; what follows goes
        by the entry it returned.

        Raises:
            InferError: Triton's texts; NOT_FOUND for what is unknown, UNAVAILABLE for a version that is known
                but not ready, INVALID_ARG for a version string that is no number.
        """
        entry = self._resolved.get((name, version))
        if entry is None:
            entry = self._find(name, version)
            if version in ("", str(entry.version)):  # "01", "001", ... would grow the cache without bound
                self._resolved[(name, version)] = entry
        return entry

    def is_current(self, entry: VersionEntry) -> bool:
        """Return whether an entry is one of this table, rather than of an older one."""
        return self.by_name.get(entry.name, {}).get(entry.version) is entry

    def _find(self, name: str, version: str) -> VersionEntry:
        number = parse_version(version)
        versions = self.by_name.get(self.identify(name))
        if versions is None:
            raise not_found(_unknown(name))
        if number is None:
            ready = self.ready_versions(name)
            if not ready:
                raise not_found(f"Request for unknown model: '{name}' has no available versions")
            return versions[ready[-1]]
        if number not in versions:
            raise not_found(f"Request for unknown model: '{name}' version {number} is not found")
        if versions[number].state is not ModelState.READY:
            raise _not_ready(name, number)
        return versions[number]


def _unknown(name: str) -> str:
    return f"Request for unknown model: '{name}' is not found"


def _not_ready(name: str, version: int) -> InferError:
    return unavailable(f"Request for unknown model: '{name}' version {version} is not at ready state")


def not_ready(entry: VersionEntry) -> InferError:
    """The error for a version the table calls ready but no replica of which is connected."""
    return _not_ready(entry.model, entry.version)
