"""The routing table, which the repository manager publishes and every ingress routes by.

A table is immutable and numbered; a newer one replaces it as a whole.
"""

from enum import StrEnum
from functools import cached_property
from typing import Protocol

import msgspec
from tritonclient.grpc import model_config_pb2 as mc

from app.core.chat_templates import TextFacts
from app.core.config.model_config import TensorSpec, input_specs, output_specs
from app.core.config.version_policy import parse_version
from app.core.drift.spec import DriftSpec
from app.core.errors import ErrorCode, InferError, invalid_arg, not_found, unavailable
from app.core.identifiers import name_of
from app.core.inference import Target
from app.core.observability.live_settings import LiveSettings
from app.core.rollout.split import Split
from app.core.sequences import keeps_sequences
from app.core.tape.spec import TapeSpec
from app.routing.refusals import RETRY_S, no_version, not_ready, unknown, unknown_text
from app.routing.scale import Scale

NO_VERSION = -1
UNLOADED = "unloaded"
"""The reason of an UNAVAILABLE version that was loaded before."""
IDLE = "idle"
"""The reason of a READY version without a replica, which its first request loads."""
DEPENDENCY = " loading failed with error"
"""Precedes, in Triton's words for an ensemble, the reason of a model that it calls."""


class ModelState(StrEnum):
    """Triton's model states; UNKNOWN is that of a model that could not be read."""

    UNKNOWN = "UNKNOWN"
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


class Composer(Protocol):
    """The router of a process, as the entries of its tables use it."""

    def compose(self, entry: "VersionEntry") -> Target:
        """Return what answers the requests of a version."""

    def tapped(self, entry: "VersionEntry") -> Target:
        """Return the same behind the tap of this process, if it has one."""


class VersionEntry(msgspec.Struct, frozen=True, dict=True, omit_defaults=True):
    """One version of a model as the manager sees it.

    `name` is the model's identifier (`app.core.identifiers`), `model` its name for clients.
    `version` is `NO_VERSION` for a model without any version to try (its configuration is bad, say).
    `application` is the name of the Serve application that serves it ("" for none, as with an ensemble), and
    `content` a digest of its files and configuration.
    `config` is the serialised, complete ModelConfig (empty until a load succeeded once). `labels` maps an
    output to its class labels. `makes_calls` says that its replicas may call other models. `scale` is that of
    a model with `max_replicas`. `ready_at` is when it became READY, in Unix seconds; 0 if unknown. `tape` and
    `drift` are what the model's files of these names say.

    `split` and `rival` are not published: the entry that `RoutingTable.resolve` returns for no version of a
    model in a rollout has them. It is the stable version's, and the candidate may answer instead.
    """

    name: str
    version: int
    state: ModelState
    reason: str = ""
    application: str = ""
    content: str = ""
    config: bytes = b""
    labels: dict[str, tuple[str, ...]] = {}
    load_seconds: float = 0.0
    makes_calls: bool = False
    scale: Scale | None = None
    ready_at: float = 0.0
    text: TextFacts = TextFacts()
    tape: TapeSpec | None = None
    drift: DriftSpec | None = None
    split: Split | None = None
    rival: "VersionEntry | None" = None

    def compose_by(self, composer: Composer) -> None:
        """Have a router compose the targets, each when it is first used."""
        vars(self).update(composer=composer)
        vars(self).pop("route", None)
        vars(self).pop("target", None)

    @cached_property
    def target(self) -> Target:
        """The target that callers use: fronts, steps of ensembles, models that call models."""
        composer: Composer = vars(self)["composer"]
        return composer.tapped(self)

    @cached_property
    def route(self) -> Target:
        """The target behind the tap, which kinds of routing use for requests that they have from a caller."""
        composer: Composer = vars(self)["composer"]
        return composer.compose(self)

    def answering(self, version: str) -> "VersionEntry":
        """Return the entry of the version that has answered a request, this one or its rival."""
        rival = self.rival
        return self if rival is None or str(rival.version) != version else rival

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
        """Whether a request may have any number of responses, also none."""
        return bool(self.model_config.model_transaction_policy.decoupled)

    @cached_property
    def batched(self) -> bool:
        """Whether the first dimension of its tensors is a batch dimension."""
        return bool(self.model_config.max_batch_size > 0)

    @cached_property
    def keeps_sequences(self) -> bool:
        """Whether all requests of a sequence must go to the same replica."""
        return keeps_sequences(self.model_config)

    @cached_property
    def sequence_idle_s(self) -> float:
        """Idle timeout of a sequence, in seconds."""
        return float(self.model_config.sequence_batching.max_sequence_idle_microseconds) / 1e6

    @cached_property
    def ensemble(self) -> bool:
        """Whether it is a graph of calls to other models, without a replica of its own."""
        return bool(self.model_config.HasField("ensemble_scheduling"))

    @property
    def own_reason(self) -> str:
        """The reason without those of the models on which an ensemble depends."""
        own, others, _ = self.reason.partition(DEPENDENCY)
        return (own.rpartition(" Model '")[0] if others else own).strip()

    @cached_property
    def instances(self) -> int:
        """Instances of a replica that execute; an ensemble counts as one."""
        groups = [group for group in self.model_config.instance_group if not group.passive]
        return max(1, sum(int(group.count) * max(1, len(group.gpus)) for group in groups))

    def waits_for_itself(self, chain: tuple[str, ...]) -> bool:
        """Whether the calls that a request is part of hold every instance, so that it could only wait."""
        return chain.count(self.name) >= self.instances

    @cached_property
    def inputs(self) -> dict[str, TensorSpec]:
        """Inputs by name."""
        return {spec.name: spec for spec in input_specs(self.model_config)}

    @cached_property
    def outputs(self) -> dict[str, TensorSpec]:
        """Outputs by name."""
        return {spec.name: spec for spec in output_specs(self.model_config)}

    @property
    def idle(self) -> bool:
        """Whether it has no replica until a request asks for it, and then gets one.

        Without an `application` it is loaded then; of an ensemble, models that it calls are.
        """
        asleep = self.scale is not None and self.scale.asleep
        return (self.reason == IDLE or asleep) and self.state is ModelState.READY

    @property
    def undescribed(self) -> bool:
        """Whether only its load tells its inputs and outputs, and whether it is decoupled."""
        return self.idle and not self.application and (self.ensemble or not (self.inputs and self.outputs))

    @property
    def unloaded_by_request(self) -> bool:
        """Whether a client unloaded it, which does not make the server unready (strict readiness)."""
        return self.state is ModelState.UNAVAILABLE and self.reason == UNLOADED

    @property
    def loaded(self) -> bool:
        """Whether it could be read and loaded."""
        wanted = self.state in (ModelState.LOADING, ModelState.UNAVAILABLE)
        return (not wanted or self.unloaded_by_request) and self.state is not ModelState.UNKNOWN

    @property
    def missing(self) -> bool:
        """Whether the server lacks it: it should be READY (strict readiness).

        A version that was or is being unloaded is not missing, nor is a model that could not be read. As in
        Triton, nor is an ensemble that the models which it calls do not allow: they count themselves.
        """
        return not self.loaded and self.state is not ModelState.UNKNOWN and not self.ensemble


class NotLoaded(InferError):
    """A request cannot be read before its version is loaded, which completes the configuration.

    Attributes:
        entry: the version, which is idle.
    """

    def __init__(self, entry: VersionEntry) -> None:
        text = f"model '{entry.model}' version {entry.version} is not loaded yet"
        super().__init__(ErrorCode.UNAVAILABLE, text, retry_after_s=RETRY_S)
        self.entry = entry


class RoutingTable(msgspec.Struct, frozen=True, dict=True):
    """All models known to the manager. `initialised` is set once the loads at start-up have ended.

    `failed` is set instead when the repositories could not be read at start-up: the server is neither live
    nor ready then, as a tritonserver with `--exit-on-error=false`. `all_loaded` says whether every model of
    the start was once read and loaded (`--exit-on-error`), whatever has become of it since. `live` are the
    settings that every ingress applies; with None each keeps its own. With `namespacing` a name may stand for
    several models (`--model-namespacing`). `splits` are the rollouts that are on. `load_failures` and
    `rollout_failures` count those since the manager started by the model's identifier. `lingering` are
    versions taken out of service while others of the model are there: their sequences go on, and none begins.
    """

    number: int = 0
    initialised: bool = False
    entries: tuple[VersionEntry, ...] = ()
    live: LiveSettings | None = None
    namespacing: bool = False
    failed: bool = False
    all_loaded: bool = False
    splits: tuple[Split, ...] = ()
    load_failures: dict[str, int] = {}
    lingering: tuple[VersionEntry, ...] = ()
    rollout_failures: dict[str, int] = {}

    @cached_property
    def split_by_name(self) -> dict[str, Split]:
        """Rollouts by identifier of the model."""
        return {split.name: split for split in self.splits}

    def compose_by(self, composer: Composer) -> None:
        """Have a router compose the targets of all entries."""
        for entry in (*self.entries, *self._split_entries.values()):
            entry.compose_by(composer)

    @cached_property
    def _split_entries(self) -> dict[str, VersionEntry]:
        """The entries of requests without a version, by identifier, of models in a rollout."""
        found = {}
        for name, split in self.split_by_name.items():
            versions, ready = self.by_name.get(name, {}), self.ready_versions(name)
            if split.stable in ready:
                rival = versions[split.candidate] if split.candidate in ready else None
                found[name] = msgspec.structs.replace(versions[split.stable], split=split, rival=rival)
        return found

    @cached_property
    def by_name(self) -> dict[str, dict[int, VersionEntry]]:
        """Entries by identifier of the model, then version in ascending order."""
        models: dict[str, dict[int, VersionEntry]] = {}
        known = (entry for entry in self.entries if entry.state is not ModelState.UNKNOWN)
        for entry in sorted(known, key=lambda entry: entry.version):
            versions = models.setdefault(entry.name, {})
            if entry.version != NO_VERSION:
                versions[entry.version] = entry
        return models

    @cached_property
    def all_ready(self) -> bool:
        """Whether no version is missing (Triton's strict readiness), but for a candidate that loads."""
        return not any(entry.missing for entry in self.entries if not self._is_beside(entry))

    def _is_beside(self, entry: VersionEntry) -> bool:
        """Return whether a version is the candidate of a rollout, whose stable version answers meanwhile."""
        split = self.split_by_name.get(entry.name)
        if split is None or split.candidate != entry.version or entry.state is not ModelState.LOADING:
            return False
        return split.stable in self.ready_versions(entry.name)

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
    def routed(self) -> dict[str, VersionEntry]:
        """Entries by Serve application name to which an ingress sends anything."""
        return self.applications | {entry.application: entry for entry in self.lingering}

    @cached_property
    def _loaded(self) -> dict[str, tuple[str, ...]]:
        """Identifiers by model name, without models that were unloaded by request."""
        found: dict[str, tuple[str, ...]] = {}
        for key, versions in sorted(self.by_name.items()):
            if not all(entry.unloaded_by_request for entry in versions.values()):
                name = name_of(key)
                found[name] = (*found.get(name, ()), key)
        return found

    def identify(self, name: str) -> str:
        """Return the identifier of a model that a client names; an identifier is returned as it is.

        Raises:
            InferError: INVALID_ARG with namespacing, when no model or several have the name.
        """
        if not self.namespacing or "/" in name:
            return name
        found = self._loaded.get(name, ())
        if len(found) == 1:
            return found[0]
        if not found:
            raise invalid_arg(unknown_text(name))
        raise invalid_arg(
            f"There are {len(found)} identifiers of model '{name}' in global map, model namespace must be "
            "provided to resolve ambiguity."
        )

    def versions(self, name: str) -> dict[int, VersionEntry] | None:
        """Return the versions of a model that a client names; None when no model or several have the name."""
        try:
            return self.by_name.get(self.identify(name))
        except InferError:
            return None

    @cached_property
    def _resolved(self) -> dict[tuple[str, str], VersionEntry]:
        return {}

    def ready_versions(self, name: str) -> list[int]:
        """Return the READY versions of a model, ascending; empty for an unknown model."""
        versions = self.versions(name) or {}
        return [number for number, entry in versions.items() if entry.state is ModelState.READY]

    def resolve(self, name: str, version: str = "") -> VersionEntry:
        """Choose the version that answers a request; "" is the highest READY one, or a rollout's stable one.

        The only place that chooses a version. A request calls it once, at the edge, and carries the entry.

        Raises:
            InferError: Triton's texts; NOT_FOUND for an unknown model or version, UNAVAILABLE for a version
                that is not ready, INVALID_ARG for a version string that is no number.
            NotLoaded: UNAVAILABLE for a version whose configuration only its load completes.
        """
        entry = self._resolved.get((name, version))
        if entry is None:
            entry = self._find(name, version)
            if entry.undescribed:
                raise NotLoaded(entry)
            if version in ("", str(entry.version)):  # "01", "001", ... would let the cache grow without limit
                self._resolved[(name, version)] = entry
        return entry

    def require_started(self) -> None:
        """Refuse a request when the start has failed.

        Raises:
            InferError: UNAVAILABLE, in Triton's words.
        """
        if self.failed:
            raise unavailable("Server not ready")

    def is_current(self, entry: VersionEntry) -> bool:
        """Return whether an entry is one of this table, rather than of an older one."""
        return self.by_name.get(entry.name, {}).get(entry.version) is entry

    def _find(self, name: str, version: str) -> VersionEntry:
        number = parse_version(version)
        self.require_started()
        versions = self.by_name.get(self.identify(name))
        if versions is None:
            raise unknown(name, self.initialised)
        if number is None:
            ready = self.ready_versions(name)
            if not ready:
                loading = [number for number, entry in versions.items() if entry.state is ModelState.LOADING]
                raise no_version(name, loading[-1] if loading else None)
            newest = versions[ready[-1]]
            return self._split_entries.get(newest.name, newest)
        if number not in versions:
            raise not_found(f"Request for unknown model: '{name}' version {number} is not found")
        if versions[number].state is not ModelState.READY:
            raise not_ready(name, number)
        return versions[number]
