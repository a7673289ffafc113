"""Loads the models that ensembles call, and tracks which were loaded only for an ensemble."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

from app.core.errors import InferError, invalid_arg
from app.routing.table import IDLE, UNLOADED, ModelState, VersionEntry
from backends.registry.configuration import normalise, validate
from deployments.manager.loading.candidate import Candidate
from deployments.manager.loading.catalog import Catalog
from deployments.manager.publishing.ensembles import (
    Entries,
    effective,
    is_ensemble,
    only_implicit,
    step_models,
)
from deployments.model_store.layout import ModelEntry
from deployments.model_store.model_files import read_labels
from deployments.model_store.text_facts import read_text_facts
from deployments.rollout.states.selection import Offer

logger = logging.getLogger(__name__)

LoadStep = Callable[[str, tuple[str, ...]], Awaitable[None]]


class EnsembleLoads:
    """Reads the manager's entries, and returns the new entries of ensembles.

    Args:
        catalog: reads the repositories.
        entries: the entries, which change.
        busy: returns whether a model is being loaded or unloaded.
        chosen: returns the versions that a load would serve of a model that is not in memory.
    """

    def __init__(
        self,
        catalog: Catalog,
        entries: Entries,
        busy: Callable[[str], bool],
        chosen: Callable[[Offer], Collection[int]] = lambda offer: offer.versions,
    ) -> None:
        self._catalog = catalog
        self._chosen = chosen
        self._entries = entries
        self._busy = busy
        self._refused: dict[tuple[str, int], str] = {}
        self._implicit: set[str] = set()
        self._requested: Counter[str] = Counter()
        self._called: dict[str, set[str]] = {}
        """The models called by ensembles that are being loaded on request, by ensemble."""
        self._ended = asyncio.Event()

    @contextmanager
    def requested(self, models: Collection[str]) -> Iterator[None]:
        """Mark models as loaded on request: they stay when an ensemble that calls them is unloaded."""
        self._implicit.difference_update(models)
        self._requested.update(models)
        try:
            yield
        finally:
            self._requested.subtract(models)
            for model in models:
                if not self._requested[model]:
                    del self._requested[model]
                    self._called.pop(model, None)
            self._ended.set()

    async def wait_not_needed(self, models: Collection[str]) -> None:
        """Wait until no requested load of an ensemble needs these models: it would fail without them."""
        while any(not called.isdisjoint(models) for called in self._called.values()):
            self._ended.clear()
            await self._ended.wait()

    async def load_steps(self, candidate: Candidate, path: tuple[str, ...], load: LoadStep) -> None:
        """Load the models that an ensemble calls and that are not served.

        Args:
            candidate: the ensemble; any other model has no steps.
            path: the ensembles for which it is loaded; those are not loaded again.
            load: loads a model for the ensembles of a path.
        """
        if not is_ensemble(candidate.config):
            return
        on_disk = await asyncio.to_thread(self._catalog.models_beside, candidate.entry)
        served = {entry.name for entry in effective(self._entries) if entry.state is ModelState.READY}
        path = (*path, candidate.name)
        called = step_models(candidate.name, candidate.config, on_disk)
        absent = [model for model in called if model not in (*served, *path)]
        if path[0] in self._requested:
            self._called.setdefault(path[0], {path[0]}).update(called)
        self._implicit.update(absent)
        await asyncio.gather(*(load(model, path) for model in absent))

    def loaded(self, candidate: Candidate) -> list[VersionEntry]:
        """Return the entries of an ensemble that is loaded; reads label files.

        Raises:
            InferError: INVALID_ARG when its configuration is wrong and another version of it is READY.
        """
        config = candidate.config
        try:
            validate(config)
            labels = read_labels(candidate.entry, config)
        except InferError as error:
            if any(e.state is ModelState.READY for e in self._entries.get(candidate.name, {}).values()):
                raise invalid_arg(
                    f"load failed for model '{candidate.name}': {error.with_code()};\n"
                ) from None
            reason, encoded = error.with_code(), config.SerializeToString(deterministic=True)
            return [
                VersionEntry(candidate.name, version, ModelState.UNAVAILABLE, reason, config=encoded)
                for version in candidate.versions
            ]
        if limit := config.ensemble_scheduling.max_inflight_requests:
            logger.info("Ensemble model '%s' configured with max_inflight_requests: %d", config.name, limit)
        encoded = config.SerializeToString(deterministic=True)
        return [
            VersionEntry(
                candidate.name,
                version,
                ModelState.READY,
                config=encoded,
                labels=labels,
                ready_at=time.time(),
                text=read_text_facts(candidate.entry.directory, version, config),
            )
            for version in candidate.versions
        ]

    def listed(self, name: str) -> list[VersionEntry]:
        """Read a model that is listed without a load: the entries of an ensemble, or those of an idle model.

        Raises:
            InferError: it cannot be read.
        """
        candidate = self._catalog.candidate(name, None)
        if is_ensemble(candidate.config):
            return self.loaded(candidate)
        config = normalise(candidate.config, self._catalog.gpus).SerializeToString(deterministic=True)
        labels = read_labels(candidate.entry, candidate.config)
        return [
            VersionEntry(name, version, ModelState.READY, IDLE, config=config, labels=labels)
            for version in self._chosen(candidate.offer({}))
        ]

    def log_refused(self, entries: Iterable[VersionEntry]) -> None:
        """Log, once, why each ensemble among the published entries that cannot be served is not.

        One that is about to change, as it or a model that it calls is being loaded, is passed over.
        """
        logged, self._refused = self._refused, {}
        for entry in (each for each in entries if is_ensemble(each.model_config)):
            key = entry.name, entry.version
            reason = entry.reason if entry.state is ModelState.UNAVAILABLE else ""
            if any(map(self._busy, (entry.name, *self.steps(entry)))):
                reason = logged.get(key, "")
            elif reason not in ("", UNLOADED, logged.get(key)):
                logger.error("failed to load '%s' version %d: %s", *key, reason)
            self._refused[key] = reason

    def steps(self, entry: VersionEntry) -> list[str]:
        """Return the models that an ensemble calls; none for another model."""
        return step_models(entry.name, entry.model_config, self._entries) if entry.ensemble else []

    def unneeded(self, name: str) -> list[str]:
        """Return the models to unload with an ensemble: those loaded only for it."""
        return only_implicit(name, self._entries, self._implicit)

    def adopted(
        self, on_disk: Iterable[ModelEntry], routed: Collection[tuple[str, int]] | None
    ) -> list[VersionEntry]:
        """Return the entries of ensembles that were loaded before a restart of the manager.

        Serve keeps applications, but an ensemble has none. The ingresses still route to it.

        Args:
            on_disk: the models in the repositories.
            routed: identifier and version of the ensembles that ingresses route to; None without an ingress,
                then all ensembles whose models are served.
        """
        found: list[VersionEntry] = []
        for entry in on_disk:
            try:
                override = self._catalog.overrides.loaded(entry.identifier)
                candidate = self._catalog.candidate(entry.identifier, override)
                if is_ensemble(candidate.config):
                    found += self.loaded(candidate)
            except InferError:
                continue  # a later load reports the error
        entries = {**self._entries}
        for one in found:
            entries[one.name] = {**entries.get(one.name, {}), one.version: one}
        served = {(e.name, e.version) for e in effective(entries) if e.state is ModelState.READY}
        wanted = served if routed is None else served & set(routed)
        return [one for one in found if (one.name, one.version) in wanted]
