"""Executes ensembles in the process where their requests are.

Each step goes through the router like any request. What a step answers is handed on by reference: a tensor's
bytes stay where the step's replica put them until the next replica has them, however many steps there are.
Everything runs on the data-plane loop.
"""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, Final, Protocol

from tritonclient.grpc import service_pb2 as pb

from app.cache.response_cache import ResponseCache
from app.core.config.request_check import RequestChecker
from app.core.inference import Call, Sink
from app.core.latencies import Latencies, first_responses
from app.core.metrics_config import MetricsConfig
from app.core.tensors import InferRequest
from app.ensemble.cached_run import CachedRun, cacheable
from app.ensemble.execution import EnsembleExecution
from app.ensemble.graph import EnsembleGraph
from app.ensemble.statistics import EnsembleStatistics
from app.routing.table import VersionEntry

NO_DISTRIBUTIONS: Final = MetricsConfig()

_SUBSETS: Final = 64
"""Pruned plans kept for each ensemble: requests ask for few different sets of outputs."""


class Models(Protocol):
    """The router, as an ensemble uses it."""

    def resolve(self, name: str, version: str = "") -> VersionEntry: ...

    def available(self, entry: VersionEntry) -> bool: ...

    def submit(self, entry: VersionEntry, request: InferRequest, sink: Sink) -> Call: ...


class Ensemble:
    """What is worked out once for a version of an ensemble."""

    def __init__(self, entry: VersionEntry, reported: MetricsConfig) -> None:
        """`reported` tells which distributions are wanted."""
        self.entry = entry
        self.checker = RequestChecker(entry.model_config)
        latencies = Latencies() if reported.summaries else None
        timed = reported.histograms and entry.decoupled
        histogram = first_responses(entry.model_config) if timed else None
        self.statistics = EnsembleStatistics(entry.model, entry.version, latencies, histogram)
        digest = blake2b(entry.config, digest_size=16).hexdigest()
        self.identity = (entry.name, str(entry.version), digest)
        self.cached = entry.model_config.response_cache.enable and not entry.decoupled
        self._plan = EnsembleGraph.of(entry.model_config)
        self._pruned: dict[frozenset[str], EnsembleGraph] = {}

    def plan(self, request: InferRequest) -> EnsembleGraph:
        """The steps this request needs."""
        if not request.outputs:
            return self._plan
        wanted = frozenset(output.name for output in request.outputs)
        plan = self._pruned.get(wanted)
        if plan is None:
            plan = self._plan.pruned(wanted)
            if len(self._pruned) < _SUBSETS:
                self._pruned[wanted] = plan
        return plan


class EnsembleRunner:
    """Runs requests of ensembles over a router, and counts those that ran here."""

    def __init__(
        self, models: Models, cache: ResponseCache | None = None, reported: MetricsConfig = NO_DISTRIBUTIONS
    ) -> None:
        """`cache` is for the ensembles that enable it; `reported` tells which distributions are wanted."""
        self._models = models
        self._reported = reported
        self._cache = cache
        self._ensembles: dict[tuple[str, int], Ensemble] = {}

    def submit(self, entry: VersionEntry, request: InferRequest, sink: Sink) -> EnsembleExecution:
        """Start a request; the sink is never called before this returns."""
        ensemble = self._ensemble(entry)
        if self._cache is not None and ensemble.cached and cacheable(request):
            run: EnsembleExecution = CachedRun(
                ensemble, self._models, request, sink, self._cache, self._serving
            )
        else:
            run = EnsembleExecution(ensemble, self._models, request, sink)
        run.start()
        return run

    def available(self, entry: VersionEntry) -> bool:
        """Whether every step could be called now."""
        for step in self._ensemble(entry).plan(_NO_REQUEST).steps:
            if not self._models.available(self._models.resolve(step.model, step.version)):
                return False
        return True

    def statistics(self, entry: VersionEntry) -> tuple[pb.ModelStatistics, dict[str, int], dict[str, Any]]:
        """Counters of what ran here, failures by reason, and distributions."""
        statistics = self._ensemble(entry).statistics
        return statistics.message, dict(statistics.failures), statistics.distributions()

    def report(self) -> list[tuple[str, int, bytes, dict[str, int], dict[str, Any]]]:
        """Of every ensemble that ran here: name, version, and `statistics` with the message serialised."""
        found = ((key, self.statistics(ensemble.entry)) for key, ensemble in self._ensembles.items())
        return [(*key, message.SerializeToString(), *more) for key, (message, *more) in found]

    def forget(self, entries: tuple[VersionEntry, ...]) -> None:
        """Drop what belongs to none of these: what is loaded again counts from zero."""
        kept = {(entry.name, entry.version) for entry in entries}
        for key in self._ensembles.keys() - kept:
            del self._ensembles[key]

    def _serving(self, plan: EnsembleGraph) -> Iterator[str]:
        """What answers the steps of a plan now: applications, and what makes up ensembles."""
        for step in plan.steps:
            entry = self._models.resolve(step.model, step.version)
            if entry.ensemble:
                inner = self._ensemble(entry)
                yield from inner.identity
                yield from self._serving(inner.plan(_NO_REQUEST))
            else:
                yield entry.application

    def _ensemble(self, entry: VersionEntry) -> Ensemble:
        key = (entry.name, entry.version)
        known = self._ensembles.get(key)
        if known is None or (known.entry is not entry and known.entry.config != entry.config):
            known = self._ensembles[key] = Ensemble(entry, self._reported)
        known.entry = entry
        return known


_NO_REQUEST: Final = InferRequest("", "", ())
