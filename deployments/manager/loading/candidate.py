"""A model as it would be loaded now, read from its repository."""

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import NamedTuple

import msgspec
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import change_requires_reload, copied
from app.core.config.validation import validate_instances
from app.core.config.version_policy import absent_versions
from app.core.errors import InferError
from app.core.observability.log import LogConfig
from app.core.rollout.spec import RolloutSpec
from app.routing.table import NO_VERSION, ModelState, VersionEntry
from backends.registry.configuration import normalise
from deployments.manager.publishing.ensembles import is_ensemble
from deployments.manager.publishing.entries import Policies
from deployments.model_store.fingerprint import version_content, version_fingerprint
from deployments.model_store.layout import ModelEntry
from deployments.model_store.model_check import check_model
from deployments.model_store.version_file import read_version_file
from deployments.parameters import replica_parameters
from deployments.rollout.states.selection import Offer
from deployments.spec import ModelSpec

logger = logging.getLogger(__name__)


class LoadPlan(NamedTuple):
    """The actions of a load.

    Attributes:
        start: versions to start.
        keep: versions that stay as they are.
        retire: entries to take out of service after the start.
        update: versions whose replicas stay and change their instances.
    """

    start: tuple[int, ...]
    keep: tuple[int, ...]
    retire: tuple[VersionEntry, ...]
    update: tuple[int, ...] = ()


def plan_load(
    wanted: Iterable[int],
    served: Iterable[VersionEntry],
    unchanged: Iterable[int],
    updatable: Iterable[int] = (),
) -> LoadPlan:
    """Plan the (re)load of a model.

    Args:
        wanted: versions that the policy selects.
        served: the present entries of the model.
        unchanged: READY versions whose files and configuration are the loaded ones.
        updatable: versions of which only the instances would change.
    """
    wanted, unchanged, served = set(wanted), set(unchanged), tuple(served)
    ready = {entry.version for entry in served if entry.state is ModelState.READY}
    keep = wanted & unchanged & ready
    update = (wanted & set(updatable) & ready) - keep
    retire = tuple(entry for entry in served if entry.version not in wanted and entry.version != NO_VERSION)
    start = wanted - keep - update
    return LoadPlan(tuple(sorted(start)), tuple(sorted(keep)), retire, tuple(sorted(update)))


class Candidate(NamedTuple):
    """A model as it would be loaded now.

    Attributes:
        entry: its directory.
        config: its normalised configuration.
        versions: the versions that its policy selects, ascending.
        template: the spec of every version, without version, application and fingerprint.
        rollout: the policy by which a new version takes over; None for at once.
        stable: the version that stays as it runs, because of a rollout; None for none.
        policies: how ingresses treat its requests.
        percents: of the requests that a version is to get when it has loaded; others get all of them.
    """

    entry: ModelEntry
    config: mc.ModelConfig
    versions: tuple[int, ...]
    template: ModelSpec
    rollout: RolloutSpec | None = None
    policies: Policies = Policies()
    stable: int | None = None
    percents: Mapping[int, float] = {}

    @property
    def name(self) -> str:
        """The model's identifier."""
        return self.entry.identifier

    def spec(self, version: int, application: str) -> ModelSpec:
        """Return the spec of one version; reads the disk."""
        return msgspec.structs.replace(
            self.template,
            version=version,
            application=application,
            config=self._encoded(version),
            fingerprint=version_fingerprint(self.entry, version),
            percent=self.percents.get(version, 100.0),
        )

    def fingerprint(self, version: int) -> str:
        """Return a digest of a version's files and its configuration; reads the disk."""
        return _digest(version_fingerprint(self.entry, version), self._encoded(version))

    def config_of(self, version: int) -> mc.ModelConfig:
        """Return the configuration of a version, which may have a form of its own; reads the disk.

        A load request's is that of all versions, as it is.

        Raises:
            InferError: INVALID_ARG for a file of the version that cannot be used.
        """
        if self.template.override or self.template.bundle or self.template.origin:
            return self.config
        found = read_version_file(self.entry.directory / str(version), self.config.backend)
        return self.config if found is None else found.config.of(self.config)

    def _encoded(self, version: int) -> bytes:
        """Return the configuration of a version as specs have it; a file in error says nothing here."""
        with suppress(InferError):  # `check` refuses the load
            config = self.config_of(version)
            if config is not self.config:
                return bytes(config.SerializeToString(deterministic=True))
        return self.template.config

    def content(self, version: int) -> str:
        """Return a digest of what a version's files and its configuration say, which a copy has too.

        "" where that cannot be told; reads all of them.
        """
        if self.template.origin:  # its files are elsewhere; their fingerprint has what the store says of them
            return ""
        said = version_content(self.entry, version)
        return said and _digest(said, self.template.override.encode())

    def offer(self, ready: Mapping[int, ModelSpec | None]) -> Offer:
        """Return the model as a rollout sees it; `ready` are the specs of its READY versions."""
        ensemble = is_ensemble(self.config)
        loaded = {version: spec for version, spec in ready.items() if spec is not None}
        running = {version: _digest(spec.fingerprint, spec.config) for version, spec in loaded.items()}
        return Offer(
            self.name,
            self.versions,
            self.entry.versions,
            tuple(ready),
            None if ensemble else self.rollout,
            self.fingerprint,
            self.content,
            running,
            ensemble,
        )

    def configured(self, loaded: ModelSpec) -> ModelSpec:
        """Return the spec of a loaded version with this configuration."""
        template = self.template
        return msgspec.structs.replace(
            loaded,
            config=self._encoded(loaded.version),
            override=template.override,
            override_files=template.override_files,
            percent=100.0,
        )

    def check(self, version: int) -> None:
        """Check its replicas and instances, and the files of a version; see `check_model`."""
        config, template = self.config_of(version), self.template
        replica_parameters(config)
        validate_instances(normalise(config, template.gpus), template.gpus)
        further = template.server.backends.path
        check_model(self.entry, config, version, further, remote=bool(template.origin))

    def unchanged(self, loaded: ModelSpec) -> bool:
        """Return whether a load would change nothing; reads the disk."""
        old = mc.ModelConfig.FromString(loaded.config)
        new = mc.ModelConfig.FromString(self._encoded(loaded.version))
        return _same_replica(old, new) and self._same_files(loaded)

    def updates(self, loaded: ModelSpec, complete: mc.ModelConfig) -> bool:
        """Return whether a load would only change the instances of the running replicas; reads the disk.

        Args:
            loaded: the spec of the loaded version.
            complete: its complete configuration, which clients read and send back with a change.
        """
        new = mc.ModelConfig.FromString(self._encoded(loaded.version))
        return self._same_files(loaded) and any(
            not change_requires_reload(old, new)
            for old in (mc.ModelConfig.FromString(loaded.config), complete)
        )

    def plan(self, entries: Iterable[VersionEntry], loaded: Mapping[str, ModelSpec]) -> LoadPlan:
        """Plan the load; reads the disk.

        Args:
            entries: the present entries of the model.
            loaded: the specs of the loaded versions, by application.
        """
        # Here rather than where versions are read: of a load they are read twice, and planned once.
        for version in absent_versions(self.config.version_policy, self.entry.versions):
            text = "version %d is specified for model '%s', but the version directory is not present"
            logger.error(text, version, self.entry.name)
        found = [(e, loaded[e.application]) for e in entries if e.application in loaded]
        unchanged = [e.version for e, spec in found if self._stays(spec) or self.unchanged(spec)]
        updatable = [
            e.version for e, spec in found if self.updates(spec, mc.ModelConfig.FromString(e.config))
        ]
        return plan_load(self.versions, entries, unchanged, updatable)

    def _stays(self, loaded: ModelSpec) -> bool:
        """Return whether a version stays as it runs; one with another key is out of reach."""
        return loaded.version == self.stable and loaded.key == self.template.key

    def _same_files(self, loaded: ModelSpec) -> bool:
        return _server_part(loaded) == _server_part(
            self.template
        ) and loaded.fingerprint == version_fingerprint(self.entry, loaded.version)


def _server_part(spec: ModelSpec) -> ModelSpec:
    """Return the part of a spec that comes from the server's settings and key; a redeployment changes it."""
    return msgspec.structs.replace(
        spec,
        version=0,
        application="",
        fingerprint="",
        config=b"",
        override="",
        override_files="",
        log=LogConfig(),
        revision=0,
        replicas=0,
        percent=100.0,
        loaded_at=0.0,
    )


def _digest(files: str, config: bytes) -> str:
    return blake2b(files.encode() + config, digest_size=16).hexdigest()


def _same_replica(one: mc.ModelConfig, other: mc.ModelConfig) -> bool:
    """Return whether two configurations make the same replica, whatever their version policies."""
    copies = copied(one), copied(other)
    for copy in copies:
        copy.ClearField("version_policy")
    return bool(copies[0] == copies[1])
