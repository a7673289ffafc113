"""Reads the model repositories into candidates for loading."""

import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import convert
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.normalise import without_instances
from app.core.config.text import parse_config_json
from app.core.config.version_policy import require_versions, served_versions
from app.core.errors import ErrorCode, InferError, internal, invalid_arg, not_found
from app.core.files.private_files import private_root, socket_root
from app.core.identifiers import name_of, namespace_of
from app.settings.settings import ServerSettings
from deployments.drift.policy import read_drift
from deployments.manager.loading.candidate import Candidate
from deployments.manager.publishing.entries import Policies
from deployments.model_store import layout, model_files
from deployments.model_store.config_overrides import ConfigOverrides
from deployments.model_store.fingerprint import fingerprint
from deployments.model_store.layout import ModelEntry
from deployments.model_store.mirror import Mirrors, copies_directory
from deployments.model_store.model_check import versions_of
from deployments.model_store.overrides import Bundle
from deployments.model_store.policy_files import read_tape_spec
from deployments.model_store.registered import RegisteredModels
from deployments.rollout.states.policy import check_outputs, read_policy
from deployments.spec import Backends, Limits, Metrics, ModelSpec, Placement, ReplicaSettings

logger = logging.getLogger(__name__)


class PollFailure(InferError):
    """A model cannot be read: why is in the log already."""


class UnknownModel(PollFailure):
    """A model is in no repository, or in several."""


def poll_failure(name: str, error: InferError) -> PollFailure:
    """Log why a model cannot be read; return Triton's error, INTERNAL unless a later try may succeed."""
    logger.error("Poll failed for model directory '%s': %s", name, error.message)
    code = error.code if error.code is ErrorCode.UNAVAILABLE else ErrorCode.INTERNAL
    return PollFailure(code, f"{_unpolled(name)}: {error.message}")


def _unpolled(name: str) -> str:
    return f"failed to load '{name}', failed to poll from model repository"


def replica_settings(settings: ServerSettings) -> ReplicaSettings:
    """Return the sections that replicas have of the server's settings."""
    cluster = settings.cluster
    return ReplicaSettings(
        limits=convert(settings.ingress, Limits, from_attributes=True),
        backends=convert(settings.backends, Backends, from_attributes=True),
        metrics=convert(settings.metrics.config, Metrics, from_attributes=True),
        placement=Placement(
            cluster.channel_address,
            socket_root(),
            settings.devices.host_policies,
            settings.rate_limiter.limits,
        ),
        transport=cluster.transport,
        auto_complete=not settings.repository.disable_auto_complete_config,
        cache_bytes=settings.model_store.cache_bytes,
    )


class Catalog:
    """Reads the repositories; every method blocks on the disk.

    Args:
        settings: the server's settings.
        key: the secret of the server's channels.
        manager: the application of the manager, from which replicas fetch the files of a load request.
        overrides: the configurations of load requests.
        registered: models outside the repositories.
    """

    def __init__(
        self,
        settings: ServerSettings,
        key: bytes,
        manager: str = "",
        overrides: ConfigOverrides | None = None,
        registered: RegisteredModels | None = None,
    ) -> None:
        self._settings = settings
        self._for_replicas = replica_settings(settings)
        self._manager = manager
        mirrors = private_root() / "mirrors"
        self._mirrors = Mirrors((url for url in settings.repository.paths if "://" in url), mirrors)
        local = {Path(path): path for path in settings.repository.paths if "://" not in path}
        places = {**local, **self._mirrors.urls}
        self._namespaces = {
            directory: place if settings.repository.namespacing else "" for directory, place in places.items()
        }
        """The namespace of each repository, by its directory."""
        self.registered = registered or RegisteredModels()
        self._key = key
        self._scanned = False
        self.overrides = overrides or ConfigOverrides()
        self.gpus: tuple[int, ...] = ()
        """The CUDA ordinals that KIND_AUTO and KIND_GPU may use."""

    def scan(self) -> dict[str, ModelEntry]:
        """Return the models of all repositories, by identifier."""
        self._mirrors.refresh(self._namespaces)
        if not self._scanned:
            self._scanned = True
            for path in layout.system_directories(self._namespaces):
                logger.info(
                    "'%s' is of the file system, and no model: it is left out", self._mirrors.shown(path)
                )
        return layout.scan(self._namespaces)

    def add_repository(self, path: str) -> None:
        """Add a local repository.

        Raises:
            InferError: ALREADY_EXISTS for one that is known, INVALID_ARG for a path that is no directory.
        """
        directory = Path(path).absolute()
        if directory in self._namespaces:
            text = f"model repository '{path}' has already been registered"
            raise InferError(ErrorCode.ALREADY_EXISTS, text)
        if not directory.is_dir():
            raise invalid_arg(f"failed to register '{path}', repository not found")
        self._namespaces[directory] = path if self._settings.repository.namespacing else ""

    def remove_repository(self, path: str) -> None:
        """Remove a repository, whose models are served on until they are unloaded.

        Raises:
            InferError: NOT_FOUND for one that is not known.
        """
        if self._namespaces.pop(Path(path).absolute(), None) is None:
            raise not_found(f"failed to unregister '{path}', repository not found")

    def identifiers(self, name: str) -> list[str]:
        """Return the identifiers of the models of a name: one, or one in each namespace that has it."""
        if not self._settings.repository.namespacing:
            return [name]
        return [entry.identifier for entry in self._find(self._places, name)] or [name]

    def served_elsewhere(self) -> list[ModelEntry]:
        """Return the registered models, which are outside the repositories."""
        return self.registered.entries(self._places)

    def place(self, name: str) -> str:
        """Return the repository of a model, as it was given: it is the same after each mount."""
        space, model = namespace_of(name), name_of(name)
        places = [path for path, namespace in self._places.items() if not space or namespace == space]
        found = [path for path in places if os.path.isdir(path / model)] or places or [*self._namespaces]
        return self._mirrors.urls.get(found[0], str(found[0]))

    def models_beside(self, entry: ModelEntry) -> set[str]:
        """Return the models of all repositories, and of the directory that has this one."""
        place = entry.directory.parent
        return {*self.scan(), *layout.scan({place: self._places.get(place, "")})}

    def fingerprints(self, on_disk: Mapping[str, ModelEntry]) -> dict[str, str]:
        """Return a text for each model, by identifier, that changes with its files and versions."""
        return {
            name: f"{fingerprint(entry)} {entry.versions} {entry.reason}" for name, entry in on_disk.items()
        }

    def startup_models(self, on_disk: Mapping[str, ModelEntry]) -> list[str]:
        """Return the models to load at start: all of them, or those of `--load-model` in EXPLICIT mode."""
        if self._settings.repository.control_mode != "explicit":
            return sorted(on_disk)
        named = set(self._settings.repository.startup_models)
        if "*" in named:
            return sorted(on_disk)
        found = {key for key, entry in on_disk.items() if entry.name in named}
        return sorted(found | (named - {on_disk[key].name for key in found}))

    def candidate(self, name: str, override: str | None, bundle: Bundle | None = None) -> Candidate:
        """Read a model's configuration and versions.

        Args:
            name: the model's identifier.
            override: its configuration as JSON, instead of the one on disk.
            bundle: the files of a load request, instead of those in the repositories.

        Raises:
            InferError: INTERNAL "failed to load ..., failed to poll from model repository", with the reason;
                INVALID_ARG "load failed ..." when no version is to be served.
        """
        entries = self._entries(name) if bundle is None else layout.find({bundle.directory: ""}, name)
        entry = entries[0] if len(entries) == 1 else None
        if entry is None:
            logger.error("failed to poll model '%s': model not found in any model repository.", name)
            raise UnknownModel(ErrorCode.INTERNAL, _unpolled(name))
        if bundle is None and override is None:
            override = self.overrides.current(entry.identifier, fingerprint(entry))
        try:
            config = self._configuration(entry, override)
            policy, watched = read_policy(entry), _policies(entry)
            if policy is not None:
                check_outputs(policy, config)
        except InferError as error:
            raise poll_failure(name, InferError(error.code, self._mirrors.shown(error.message))) from error
        return self._candidate(entry, config, override or "", bundle)._replace(
            rollout=policy, policies=watched
        )

    def policies(self, on_disk: Iterable[ModelEntry]) -> dict[str, Policies]:
        """Return how ingresses treat requests of models, by identifier; a file in error says nothing."""
        found = {}
        for entry in on_disk:
            with suppress(InferError):  # its next load tells
                found[entry.identifier] = _policies(entry)
        return found

    def directory(self, name: str) -> Path | None:
        """Return the directory of a model, by its identifier; None if it has none now, or several."""
        space, model = namespace_of(name), name_of(name)
        places = [path for path, namespace in self._places.items() if not space or namespace == space]
        found = [path / model for path in places if os.path.isdir(path / model)]
        return found[0] if len(found) == 1 else None

    def _entries(self, model: str) -> list[ModelEntry]:
        """Find the models that an identifier refers to."""
        space = namespace_of(model)
        places = {path: namespace for path, namespace in self._places.items() if namespace == space}
        return self._find(places, name_of(model) if space else model)

    @property
    def _places(self) -> dict[Path, str]:
        """The namespace of each directory that has models, those of registered models included."""
        namespacing = self._settings.repository.namespacing
        registered = {path: str(path) if namespacing else "" for path in self.registered.repositories}
        return {**registered, **self._namespaces}

    def _find(self, places: Mapping[Path, str], name: str) -> list[ModelEntry]:
        self._mirrors.refresh(places, name)
        return self.registered.find(name, places) or layout.find(places, name)

    def _configuration(self, entry: ModelEntry, override: str | None) -> mc.ModelConfig:
        for warning in entry.warnings:
            logger.warning("%s", warning)
        if entry.reason:
            raise internal(entry.reason)
        config = without_instances(self._declared(entry, override))
        model_files.refuse_faults(config, not self._settings.repository.disable_auto_complete_config)
        return config

    def _candidate(
        self, entry: ModelEntry, config: mc.ModelConfig, override: str, bundle: Bundle | None
    ) -> Candidate:
        try:
            versions = require_versions(entry.name, served_versions(config.version_policy, entry.versions))
        except InferError as error:
            text = f"load failed for model '{entry.identifier}': {error.message}. {versions_of(entry)}\n"
            raise invalid_arg(self._mirrors.shown(text)) from None
        template = msgspec.structs.replace(
            self._template(entry, config),
            bundle=bundle.digest if bundle is not None else "",
            override=override if bundle is None else "",
            override_files=fingerprint(entry) if override and bundle is None else "",
        )
        return Candidate(entry, config, tuple(versions), template)

    def _declared(self, entry: ModelEntry, override: str | None) -> mc.ModelConfig:
        auto_complete = not self._settings.repository.disable_auto_complete_config
        if override is None:
            return model_files.read_config(entry, self._settings.repository.config_name, auto_complete)
        return model_files.complete_config(entry, parse_config_json(override))

    def _template(self, entry: ModelEntry, config: mc.ModelConfig) -> ModelSpec:
        settings = self._settings
        url = self._mirrors.urls.get(entry.repository, "")
        return ModelSpec(
            name=entry.name,
            version=0,
            directory=str(entry.directory),
            config=config.SerializeToString(deterministic=True),
            application="",
            fingerprint="",
            key=self._key,
            server=self._for_replicas,
            cache_config=settings.cache if config.response_cache.enable else {},
            gpus=self.gpus,
            origin=f"{url}/{entry.name}" if url else "",
            cache_directory=str(copies_directory(settings.model_store.cache_directory, url)) if url else "",
            manager=self._manager,
            namespace=entry.namespace,
            log=settings.log,
        )


def _policies(entry: ModelEntry) -> Policies:
    """Read how ingresses treat the requests of a model; raise as `candidate`."""
    return Policies(read_tape_spec(entry), read_drift(entry))
