"""An ensemble version, prepared once for all of its requests."""

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from app.core.config.request_check import RequestChecker
from app.core.observability.metrics_config import MetricsConfig
from app.core.observability.statistics import Statistics
from app.core.tensors import InferRequest
from app.ensemble.graph import EnsembleGraph
from app.ensemble.plan import Models, Plan, plan_of
from app.ensemble.slots import StepSlots
from app.routing.table import RoutingTable, VersionEntry
from app.transport.wire.compiled import plain_check

if TYPE_CHECKING:
    from app.native.extension import Messages

_SUBSETS: Final = 64
"""Pruned graphs kept for each ensemble: requests ask for few different sets of outputs."""


class CompiledEnsemble:
    """The graph, the request checks, the limit and the counters of one ensemble version."""

    def __init__(self, entry: VersionEntry, reported: MetricsConfig, messages: "Messages | None") -> None:
        """`reported` selects the distributions that are recorded, `messages` checks most requests."""
        self.entry = entry
        self.version = str(entry.version)
        plain = () if messages is None else (plain_check(messages, entry.model_config).rows,)
        self.checker = RequestChecker(entry.model_config, *plain)
        self.statistics = Statistics.for_model(entry.model_config, reported.summaries, reported.histograms)
        digest = blake2b(entry.config, digest_size=16).hexdigest()
        self.identity = (entry.name, self.version, digest)
        self.cached = entry.model_config.response_cache.enable and not entry.decoupled
        self.graph = EnsembleGraph.from_config(entry.model_config)
        self.slots = StepSlots(entry.model_config.ensemble_scheduling.max_inflight_requests)
        self._pruned: dict[frozenset[str], EnsembleGraph] = {}
        self._plans: dict[EnsembleGraph, Plan | None] = {}
        self._planned_by: RoutingTable | None = None

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

    def plan_for(self, request: InferRequest, models: Models) -> Plan | None:
        """Return the plan that a request follows; None where it has to find out more on its way."""
        if request.trace:
            return None
        if self._planned_by is not models.table:
            self.forget_plans()
            self._planned_by = models.table
        graph = self.graph_for(request)
        if graph not in self._plans:
            plan = plan_of(self.entry, graph, models)
            if len(self._plans) > _SUBSETS:
                return plan
            self._plans[graph] = plan
        return self._plans[graph]

    def forget_plans(self) -> None:
        """Drop the plans: the routing table by which they were made is not the current one any more."""
        self._planned_by = None
        self._plans.clear()
