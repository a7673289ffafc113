"""An ensemble version, prepared once for all of its requests."""

from hashlib import blake2b
from typing import Final, Protocol

from app.core.config.request_check import RequestChecker
from app.core.observability.metrics_config import MetricsConfig
from app.core.observability.statistics import Statistics
from app.core.tensors import InferRequest
from app.ensemble.graph import EnsembleGraph
from app.ensemble.slots import StepSlots
from app.routing.table import VersionEntry

_SUBSETS: Final = 64
"""Pruned graphs kept for each ensemble: requests ask for few different sets of outputs."""


class Models(Protocol):
    """The router, as an ensemble uses it for its steps."""

    def resolve(self, name: str, version: str = "") -> VersionEntry: ...

    def available(self, entry: VersionEntry) -> bool: ...


class CompiledEnsemble:
    """The graph, the request checks, the limit and the counters of one ensemble version."""

    def __init__(self, entry: VersionEntry, reported: MetricsConfig) -> None:
        """`reported` selects the distributions that are recorded."""
        self.entry = entry
        self.checker = RequestChecker(entry.model_config)
        self.statistics = Statistics.for_model(entry.model_config, reported.summaries, reported.histograms)
        digest = blake2b(entry.config, digest_size=16).hexdigest()
        self.identity = (entry.name, str(entry.version), digest)
        self.cached = entry.model_config.response_cache.enable and not entry.decoupled
        self.graph = EnsembleGraph.from_config(entry.model_config)
        self.slots = StepSlots(entry.model_config.ensemble_scheduling.max_inflight_requests)
        self._pruned: dict[frozenset[str], EnsembleGraph] = {}

    def graph_for(self, request: InferRequest) -> EnsembleGraph:
        """Return the steps that lead to the outputs a request asks for."""
        if not request.outputs:
            return self.graph
        wanted = frozenset(output.name for output in request.outputs)
        graph = self._pruned.get(wanted)
        if graph is None:
            graph = self.graph.pruned(wanted)
            if len(self._pruned) < _SUBSETS:
                self._pruned[wanted] = graph
        return graph
