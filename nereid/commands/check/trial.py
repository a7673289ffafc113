"""Loads of models for `nereid check`: as a server would do it, but in this process and on the CPU."""

import glob
import logging
from collections.abc import Iterator
from typing import NamedTuple

from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.normalise import ENSEMBLE
from app.core.errors import InferError
from app.routing.table import IDLE, ModelState, VersionEntry
from app.settings.settings import ServerSettings
from backends.base import Backend, Instance, Model
from backends.registry.configuration import normalise, validate
from backends.registry.loading import find_backend, hosted_backend, runs_elsewhere
from backends.registry.place import BackendPlace
from deployments.environments.prepare import chosen, look
from deployments.execution.warmup import check_samples, warm_up
from deployments.manager.loading.candidate import Candidate
from deployments.manager.loading.catalog import Catalog
from deployments.manager.publishing.ensembles import effective
from deployments.model_store.agents import check_agents
from deployments.model_store.layout import ModelEntry
from deployments.model_store.model_files import read_labels


class Verdict(NamedTuple):
    """What is known of a model.

    Attributes:
        model: its name.
        reason: why it could not be served; "" for one that passes.
        warnings: what is served in another way than its files ask for.
    """

    model: str
    reason: str
    warnings: tuple[str, ...] = ()


class Trial:
    """The models of repositories, and what is wrong with each."""

    def __init__(self, settings: ServerSettings) -> None:
        logging.disable(logging.ERROR)  # what is logged on the way is in the verdicts
        self._catalog = Catalog(settings, b"")
        self._catalog.gpus = tuple(range(len(glob.glob("/dev/nvidia[0-9]*"))))
        self._warnings: dict[str, list[str]] = {}

    def verdicts(self) -> list[Verdict]:
        """Judge every model; ensembles by the models that they call."""
        entries = {name: self._entries(name, model) for name, model in self._catalog.scan().items()}
        reasons = {name: "" for name in entries}
        for entry in effective(entries):
            if entry.state is not ModelState.READY and not reasons[entry.name]:
                reasons[entry.name] = entry.reason
        return [
            Verdict(name, reason, tuple(dict.fromkeys(self._warnings.get(name, ()))))
            for name, reason in sorted(reasons.items())
        ]

    def _entries(self, name: str, found: ModelEntry) -> dict[int, VersionEntry]:
        """Return an entry for each version, as a server's table has it."""
        try:
            candidate = self._catalog.candidate(name, None)
        except InferError as error:
            version = min(found.versions, default=1)
            return {version: VersionEntry(name, version, ModelState.UNAVAILABLE, error.with_code())}
        return {version: self._entry(candidate, version) for version in candidate.versions}

    def _entry(self, candidate: Candidate, version: int) -> VersionEntry:
        name = candidate.name
        try:
            config, described = self._judged(candidate, version)
        except InferError as error:
            reason = error.with_code()
        except Exception as error:
            reason = f"Internal: {type(error).__name__}: {error}"
        else:
            encoded = config.SerializeToString(deterministic=True)
            return VersionEntry(name, version, ModelState.READY, "" if described else IDLE, config=encoded)
        return VersionEntry(name, version, ModelState.UNAVAILABLE, reason)

    def _judged(self, candidate: Candidate, version: int) -> tuple[mc.ModelConfig, bool]:
        """Return the configuration of a version, and whether that is complete."""
        if candidate.config.platform == ENSEMBLE:
            validate(candidate.config, self._catalog.gpus)
            read_labels(candidate.entry, candidate.config)
            return candidate.config, True
        candidate.check(version)
        return self._loaded(candidate, version)

    def _loaded(self, candidate: Candidate, version: int) -> tuple[mc.ModelConfig, bool]:
        """Check a version as its load would; load it, if that executes no code of a user."""
        if not candidate.template.origin:
            check_agents(candidate.config, candidate.entry.directory, version)
        spec, config = candidate.template, normalise(candidate.config_of(version), self._catalog.gpus)
        settings = spec.server.backends.settings(config.backend)
        model = Model(config, version, candidate.entry.directory, settings)
        self._warnings.setdefault(candidate.name, []).extend(_doubtful(candidate.config))
        kind, elsewhere = self._backend(model, candidate)
        loads = not spec.origin and kind.inspect(model) and not elsewhere
        if loads and spec.server.auto_complete:
            model.config = normalise(kind.auto_complete(model), self._catalog.gpus)
        described = loads or bool(config.input and config.output)
        if described:
            validate(model.config, self._catalog.gpus)
            check_samples(model)
        read_labels(candidate.entry, model.config)
        if loads:
            _load(kind(), model)
        return model.config, described

    def _backend(self, model: Model, candidate: Candidate) -> tuple[type[Backend], bool]:
        """Return the class of a model's backend, and whether another environment executes it."""
        spec, folders = candidate.template, (model.version_directory, model.directory)
        place = BackendPlace.of(model.config, spec.server.backends.path, folders)
        model.common_file = place.python_file
        if runs_elsewhere(place, model.backend_config):
            chosen(model, installs=False)
            return hosted_backend(model.config.backend), True
        if model.common_file:
            model.backend_config = spec.server.backends.settings(model.config.backend, "python")
        if unlike := look(model).unlike:
            self._warnings[candidate.name].append(unlike)
        return find_backend(place), False


def _doubtful(config: mc.ModelConfig) -> Iterator[str]:
    for group in config.instance_group:
        if group.count < 0:
            yield f"'count: {group.count}' of an instance_group is none, and taken for the default"


def _load(backend: Backend, model: Model) -> None:
    """Load one instance and warm it up."""
    backend.initialize(model.backend_config)
    backend.model_initialize(model)
    instance = Instance(model, f"{model.name}_0")
    backend.instance_initialize(instance)
    try:
        warm_up(backend, instance)
    finally:
        backend.instance_finalize(instance)
