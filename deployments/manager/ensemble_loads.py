"""Loads ensembles: what they call first, and knows which models were loaded for an ensemble alone."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

from app.core.config.validation import validate
from app.core.errors import InferError, invalid_arg
from app.routing.table import ModelState, VersionEntry
from deployments.manager.catalog import Candidate, Catalog
from deployments.manager.ensembles import (
    Entries,
    effective,
    is_ensemble,
    only_implicit,
    step_models,
)
from deployments.model_store.layout import ModelEntry
from deployments.model_store.model_files import read_labels

LoadStep = Callable[[str, tuple[str, ...]], Awaitable[None]]


class EnsembleLoads:
    """Reads the manager's entries, and returns what those of ensembles should become."""

    def __init__(self, catalog: Catalog, entries: Entries) -> None:
        self._catalog = catalog
        self._entries = entries
        self._implicit: set[str] = set()
        self._under_way: Counter[str] = Counter()
        self._called: dict[str, set[str]] = {}
        """What ensembles call that are being loaded on request."""
        self._over = asyncio.Event()

    @contextmanager
    def requested(self, models: Collection[str]) -> Iterator[None]:
        """Models are loaded on request: they stay when an ensemble that calls them goes."""
        self._implicit.difference_update(models)
        self._under_way.update(models)
        try:
            yield
        finally:
            self._under_way.subtract(models)
            for model in models:
                if not self._under_way[model]:
                    del self._under_way[model]
                    self._called.pop(model, None)
            self._over.set()

    async def not_needed(self, models: Collection[str]) -> None:
        """Wait until no load that a client asked for needs these: it would fail without them."""
        while any(not called.isdisjoint(models) for called in self._called.values()):
            self._over.clear()
            await self._over.wait()

    async def load_steps(self, candidate: Candidate, path: tuple[str, ...], load: LoadStep) -> None:
        """Load what an ensemble calls and nobody has loaded; `path` are the ensembles being loaded for it."""
        if not is_ensemble(candidate.config):
            return
        on_disk = await asyncio.to_thread(self._catalog.scan)
        served = {entry.name for entry in effective(self._entries) if entry.state is ModelState.READY}
        path = (*path, candidate.name)
        called = step_models(candidate.name, candidate.config, on_disk)
        absent = [model for model in called if model not in (*served, *path)]
        if path[0] in self._under_way:
            self._called.setdefault(path[0], {path[0]}).update(called)
        self._implicit.update(absent)
        await asyncio.gather(*(load(model, path) for model in absent))

    def loaded(self, candidate: Candidate) -> list[VersionEntry]:
        """The entries of an ensemble that is loaded; reads label files.

        Raises:
            InferError: INVALID_ARG when the ensemble cannot be served whatever it calls.
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
            reason = error.with_code()
            return [
                VersionEntry(candidate.name, version, ModelState.UNAVAILABLE, reason)
                for version in candidate.versions
            ]
        encoded = config.SerializeToString(deterministic=True)
        return [
            VersionEntry(candidate.name, version, ModelState.READY, config=encoded, labels=labels)
            for version in candidate.versions
        ]

    def unneeded(self, name: str) -> list[str]:
        """Models to unload with an ensemble: those loaded for it alone."""
        return only_implicit(name, self._entries, self._implicit)

    def adopted(
        self, on_disk: Iterable[ModelEntry], routed: Collection[tuple[str, int]] | None
    ) -> list[VersionEntry]:
        """Ensembles on disk whose models are all served: a restarted manager takes them for loaded.

        Serve keeps what it deployed; an ensemble is only a plan. Who remembers it are the ingresses: `routed`
        are the identifiers and versions that they route to, None when nobody is there to ask.
        """
        found: list[VersionEntry] = []
        for entry in on_disk:
            try:
                candidate = self._catalog.candidate(entry.identifier, None)
                if is_ensemble(candidate.config):
                    found += self.loaded(candidate)
            except InferError:
                continue  # its load will say what is wrong
        entries = {**self._entries}
        for one in found:
            entries[one.name] = {**entries.get(one.name, {}), one.version: one}
        served = {(e.name, e.version) for e in effective(entries) if e.state is ModelState.READY}
        wanted = served if routed is None else served & set(routed)
        return [one for one in found if (one.name, one.version) in wanted]
