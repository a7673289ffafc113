"""The model repositories on disk, read into what can be loaded."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config_normalise import normalise
from app.core.config_text import parse_config_json
from app.core.errors import InferError, internal
from app.core.version_policy import require_versions, served_versions
from app.settings import ServerSettings
from deployments.repository import layout
from deployments.repository.fingerprint import version_fingerprint
from deployments.repository.layout import ModelEntry
from deployments.spec import ModelSpec


class Candidate(NamedTuple):
    """A model as it would be loaded now."""

    entry: ModelEntry
    config: mc.ModelConfig
    versions: tuple[int, ...]
    template: ModelSpec

    @property
    def name(self) -> str:
        return self.entry.name

    def spec(self, version: int, application: str) -> ModelSpec:
        """The spec of one version; reads the disk."""
        return msgspec.structs.replace(
            self.template,
            version=version,
            application=application,
            fingerprint=version_fingerprint(self.entry, version),
        )

    def unchanged(self, loaded: ModelSpec) -> bool:
        """Whether a load would bring nothing new over what is loaded; reads the disk."""
        return (
            _loads_alike(mc.ModelConfig.FromString(loaded.config), self.config)
            and _setting(loaded) == _setting(self.template)
            and loaded.fingerprint == version_fingerprint(self.entry, loaded.version)
        )


def _setting(spec: ModelSpec) -> ModelSpec:
    """What the server's settings, and its key, contribute to a spec: it differs after a redeployment."""
    return msgspec.structs.replace(spec, version=0, application="", fingerprint="", config=b"")


def _loads_alike(one: mc.ModelConfig, other: mc.ModelConfig) -> bool:
    """Whether two configurations make the same replica: which versions are served does not concern it."""
    copies = []
    for config in (one, other):
        copy = mc.ModelConfig()
        copy.CopyFrom(config)
        copy.ClearField("version_policy")
        copies.append(copy)
    return bool(copies[0] == copies[1])


class Catalog:
    """Reads the repositories; every method blocks on the disk."""

    def __init__(self, settings: ServerSettings, key: bytes) -> None:
        self._settings = settings
        self._repositories = [Path(path) for path in settings.model_repository]
        self._key = key
        self.gpus: tuple[int, ...] = ()
        """CUDA ordinals that KIND_AUTO and KIND_GPU may mean."""

    def scan(self) -> dict[str, ModelEntry]:
        """Models by name."""
        return layout.scan(self._repositories)

    def startup_models(self, on_disk: Mapping[str, ModelEntry]) -> list[str]:
        """Models to load at start: all of them, or those of `--load-model` in EXPLICIT mode."""
        if self._settings.model_control_mode != "explicit":
            return sorted(on_disk)
        named = self._settings.load_model
        return sorted(on_disk) if "*" in named else sorted(set(named))

    def candidate(self, name: str, override: str | None) -> Candidate:
        """Read a model's configuration and versions.

        Raises:
            InferError: INTERNAL "failed to load ..., failed to poll from model repository", with the reason.
        """
        entry = layout.find(self._repositories, name)
        if entry is None:
            raise internal(f"failed to load '{name}', failed to poll from model repository")
        try:
            return self._read(entry, override)
        except InferError as error:
            text = f"failed to load '{name}', failed to poll from model repository: {error.message}"
            raise InferError(error.code, text) from error

    def _read(self, entry: ModelEntry, override: str | None) -> Candidate:
        if entry.reason:
            raise internal(entry.reason)
        config = normalise(self._declared(entry, override), self.gpus)
        versions = require_versions(entry.name, served_versions(config.version_policy, entry.versions))
        return Candidate(entry, config, tuple(versions), self._template(entry, config))

    def _declared(self, entry: ModelEntry, override: str | None) -> mc.ModelConfig:
        auto_complete = not self._settings.disable_auto_complete_config
        if not override:
            return layout.read_config(entry, self._settings.model_config_name, auto_complete)
        return layout.complete_config(entry, parse_config_json(override))

    def _template(self, entry: ModelEntry, config: mc.ModelConfig) -> ModelSpec:
        settings = self._settings
        return ModelSpec(
            name=entry.name,
            version=0,
            directory=str(entry.directory),
            config=config.SerializeToString(deterministic=True),
            application="",
            fingerprint="",
            key=self._key,
            socket_directory=os.path.join(tempfile.gettempdir(), f"nereid-{os.getuid()}"),
            auto_complete=not settings.disable_auto_complete_config,
            backend_directory=settings.backend_directory,
            backend_config=settings.backend_settings(),
            cache_config=settings.cache_settings() if config.response_cache.enable else {},
            channel_address=settings.channel_address,
            gpus=self.gpus,
            max_pending_requests=settings.max_pending_requests,
            max_pending_bytes=settings.max_pending_bytes,
            arena_bytes=settings.arena_bytes,
            summaries=settings.latency_metrics().summaries,
            histograms=settings.latency_metrics().histograms,
        )
