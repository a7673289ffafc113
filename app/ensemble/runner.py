"""Executes ensembles in the process where their requests are.

Each step is sent to the target of its version like any request. What a step returns is passed on by
reference: a tensor's bytes stay where the step's replica put them until the next replica has them, however
many steps there are. Everything runs on the data-plane loop.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from app.cache.response_cache import ResponseCache
from app.core.inference import Call, Sink
from app.core.observability.metrics_config import MetricsConfig
from app.core.observability.statistics import EnsembleReports, ReplicaReport
from app.core.tensors import InferRequest
from app.ensemble.cached_execution import CachedExecution, is_cacheable
from app.ensemble.call import EnsembleCall
from app.ensemble.compiled import CompiledEnsemble
from app.ensemble.execution import EnsembleExecution
from app.ensemble.graph import EnsembleGraph
from app.ensemble.plan import Models
from app.ensemble.planned import PlannedExecution
from app.routing.table import VersionEntry
from app.routing.targets import Routes
from app.transport.memory.client_regions import with_inlined_regions
from app.transport.settings import TransportSettings
from app.transport.wire.compiled import compiled_messages

NO_DISTRIBUTIONS: Final = MetricsConfig()
_SETTINGS: Final = TransportSettings()


class EnsembleRunner:
    """Runs requests of ensembles over a router, and counts those that ran here."""

    def __init__(
        self,
        models: Models,
        cache: ResponseCache | None = None,
        reported: MetricsConfig = NO_DISTRIBUTIONS,
        settings: TransportSettings = _SETTINGS,
    ) -> None:
        """`cache` is for ensembles that enable it; `reported` selects the distributions that are recorded."""
        self._models = models
        self._messages = compiled_messages(settings)
        self._reported = reported
        self._cache = cache
        self._ensembles: dict[tuple[str, int], CompiledEnsemble] = {}

    def start(self, entry: VersionEntry, request: InferRequest, sink: Sink) -> EnsembleCall:
        """Start a request; the sink is never called before this returns."""
        ensemble = self._compiled(entry)
        execution: EnsembleCall
        cached = self._cache is not None and ensemble.cached and is_cacheable(request)
        if self._cache is not None and cached and not self._is_split(ensemble.graph):
            execution = CachedExecution(ensemble, self._models, request, sink, self._cache, self._serving)
        elif (plan := ensemble.plan_for(request, self._models)) is not None:
            execution = PlannedExecution(ensemble, plan, request, sink)
        else:
            execution = EnsembleExecution(ensemble, self._models, request, sink)
        execution.start()
        return execution

    def available(self, entry: VersionEntry) -> bool:
        """Return whether every step could be called now."""
        for step in self._compiled(entry).graph.steps:
            if not self._models.available(self._models.resolve(step.model, step.version)):
                return False
        return True

    def report(self, entry: VersionEntry) -> ReplicaReport:
        """Return the counters of an ensemble's requests that ran here."""
        return self._compiled(entry).statistics.report()

    def reports(self) -> EnsembleReports:
        """Return the counters of every ensemble that ran here."""
        return [(*key, ensemble.statistics.report()) for key, ensemble in self._ensembles.items()]

    def retain(self, entries: tuple[VersionEntry, ...]) -> None:
        """Drop all versions but these: one that is loaded again counts from zero."""
        kept = {(entry.name, entry.version) for entry in entries}
        for key in self._ensembles.keys() - kept:
            del self._ensembles[key]
        for ensemble in self._ensembles.values():  # or one without requests would keep an older table
            ensemble.forget_plans()

    def _serving(self, graph: EnsembleGraph) -> Iterator[str]:
        """Return what identifies the versions that would answer a graph's steps now, for the cache key."""
        for step in graph.steps:
            entry = self._models.resolve(step.model, step.version)
            if entry.ensemble:
                inner = self._compiled(entry)
                yield from inner.identity
                yield from self._serving(inner.graph)
            else:
                yield from (entry.name, str(entry.version), entry.content)

    def _is_split(self, graph: EnsembleGraph) -> bool:
        """Return whether a step may be answered by either version of a rollout, of which no key knows."""
        entries = [self._models.resolve(step.model, step.version) for step in graph.steps]
        return any(
            entry.split is not None or (entry.ensemble and self._is_split(self._compiled(entry).graph))
            for entry in entries
        )

    def _compiled(self, entry: VersionEntry) -> CompiledEnsemble:
        key = (entry.name, entry.version)
        known = self._ensembles.get(key)
        if known is None or (known.entry is not entry and known.entry.config != entry.config):
            known = self._ensembles[key] = CompiledEnsemble(entry, self._reported, self._messages)
        known.entry = entry
        return known


@dataclass(slots=True, eq=False)
class EnsembleTarget:
    """An ensemble, which runs in this process."""

    entry: VersionEntry
    routes: Routes
    runner: EnsembleRunner

    @property
    def available(self) -> bool:
        """As `Target.available`."""
        return self.runner.available(self.entry)

    def submit(self, request: InferRequest, sink: Sink) -> Call:
        """As `Target.submit`."""
        if not self.routes.table.is_current(self.entry):
            return self.routes.otherwise(self.entry, request, sink)
        if request.regions:  # the steps' replicas may be on other nodes
            request, sink = with_inlined_regions(request, sink)
        return self.runner.start(self.entry, request, sink)
