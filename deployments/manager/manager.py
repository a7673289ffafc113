"""The repository manager: the only writer of the served models.

It scans the repositories, deploys and deletes the applications of model versions, and publishes routing
tables. The data plane works without it. After a restart it recovers its state from Serve.
"""

import asyncio
import logging
import os
from collections.abc import Sequence

import msgspec

from app.core.cost.reports import CostReport
from app.core.drift.counts import DriftReport
from app.core.encoding import to_msgpack
from app.core.errors import InferError, invalid_arg, not_found
from app.core.feedback.reports import ScoreReport
from app.core.files.private_files import private_root
from app.core.observability.log import configure_logging
from app.core.rollout.outcomes import OutcomeReport
from app.core.rollout.status import RolloutChange
from app.core.system.lone_thread import LoneThread
from app.core.system.tasks import Tasks
from app.ray_adapter import store
from app.ray_adapter.node import ASK_S, NODE_ADDRESS, gpus_by_node, node_id
from app.ray_adapter.orphans import end_with_raylet
from app.ray_adapter.serve.log import omit_failures
from app.routing.last_table import LastTable
from app.routing.manager_client import LoadRequest
from app.routing.pools import Pools
from app.routing.table import RoutingTable
from app.routing.table_bytes import encode_table
from app.settings.settings import ServerSettings
from deployments.cost.book import open_book
from deployments.manager.drift import drift_monitor
from deployments.manager.loading import load_messages
from deployments.manager.loading.catalog import Catalog, PollFailure, UnknownModel
from deployments.manager.loading.lifecycle import Lifecycle
from deployments.manager.publishing.routing_publisher import RoutingPublisher
from deployments.manager.recovery import recover
from deployments.manager.requests import Requests
from deployments.manager.serve import applications
from deployments.manager.serve.nodes import NodeWatch, warn_of_nodes_out_of_reach
from deployments.manager.serve.spreading import Spreading
from deployments.manager.start import StartLoads
from deployments.model_store.config_overrides import PREFIX, ConfigOverrides
from deployments.model_store.overrides import Overrides
from deployments.model_store.registered import PREFIX as REGISTERED
from deployments.model_store.registered import RegisteredModels
from deployments.model_store.started import PREFIX as STARTED
from deployments.model_store.started import StartedModels
from deployments.residency.on_demand import OnDemand
from deployments.rollout.driver import RolloutDriver
from deployments.rollout.executions import ExecutionReader
from deployments.rollout.judging.judge import judge
from deployments.rollout.lingering import Lingering
from deployments.rollout.rollouts import Rollouts
from deployments.rollout.storage import state_files
from deployments.rollout.storage.documents import Documents, Storage
from deployments.rollout.storage.ledger import Ledger
from deployments.rollout.storage.records import Records
from deployments.scaling.autoscaler import Autoscaler
from deployments.scaling.forecast import History
from deployments.scaling.forecasts import Forecasts
from deployments.stored import StoredValues

logger = logging.getLogger(__name__)


class RepositoryManager:
    """Answers ingresses, clients and replicas; its `Lifecycle` changes models. There is one replica of it.

    A plain class; `nereid/server/main.py` makes it a Serve deployment.

    Args:
        settings: the server's settings.
        key: the secret of the server's channels.
        ingress: the application and deployment of the ingresses.

    Attributes:
        lifecycle: the models and their changes.
        cost: the account of the server.
    """

    def __init__(self, settings: ServerSettings, key: bytes, ingress: tuple[str, str]) -> None:
        end_with_raylet()
        configure_logging(settings.log)
        omit_failures(InferError)  # a refused load is logged in one line
        self._settings = settings
        self._key = key
        self._ingress = ingress
        limits = settings.model_store
        self._configs = ConfigOverrides(StoredValues(store, PREFIX), limits.config_override_bytes)
        registered = RegisteredModels(StoredValues(store, REGISTERED))
        self._catalog = Catalog(settings, key, ingress[0], self._configs, registered)
        self._overrides = Overrides(private_root() / "overrides", limits.override_bytes)
        self._background = Tasks()
        self._last_table = LastTable(store, key, self._background)
        namespacing, lingering = settings.repository.namespacing, Lingering(self._channels)
        self._publisher = RoutingPublisher(namespacing, self._last_table, lingering)
        self._state_files = state_files.opened(limits.state_directory, self._catalog.place)
        storage = Storage(store, self._state_files, settings.repository.paths)
        rollouts = Rollouts(Records(storage), Ledger(storage), applications.stops)
        self.lifecycle = Lifecycle(
            settings, self._catalog, self._publisher, ingress, self._background, rollouts, applications
        )
        self._requests = Requests(self.lifecycle, self._catalog, self._configs, self._overrides)
        forecasts = Forecasts(Documents(storage, "forecast", History))
        self._scaler = Autoscaler(self.lifecycle, self._channels, rollouts.is_on, forecasts)
        cost = self.cost = open_book(settings, savings=rollouts.savings)
        executions = ExecutionReader(lambda: self.lifecycle.loaded, self._channels)
        self._rollouts = RolloutDriver(
            rollouts, self.lifecycle, judge, self._background, self._scaler.missing, executions, cost.minutes
        )
        self._on_demand = OnDemand(settings, self.lifecycle, lambda: [each.name for each in rollouts.on()])
        self._drift = drift_monitor(self.lifecycle, self._catalog, storage)
        startup = settings.repository.startup_models
        self._started = StartedModels(StoredValues(store, STARTED), key, startup)
        self._start: asyncio.Task[None] | None = None
        self._recovered = asyncio.Event()
        self._stopping = False

    def __del__(self) -> None:
        """Stop polling (a Serve hook): the threads that it needs end next."""
        self._stopping = True
        self.cost.close()

    @property
    def table(self) -> RoutingTable:
        """The current routing table."""
        return self._publisher.table

    async def watch(self, ingress: str, applied: int) -> bytes:
        """Return the next routing table to one that routes by table `applied`; b"" if none comes soon."""
        await self._ensure_recovered()
        return await self._publisher.watch(ingress, applied)

    async def receive(self, ingress: str, number: int) -> None:
        """Record that an ingress has received table `number`."""
        await self._publisher.receive(ingress, number)

    async def process(self) -> tuple[str, int]:
        """Return the node and the id of this process."""
        return node_id(), os.getpid()

    async def status(self) -> bytes:
        """Return the current routing table, see `decode_table`."""
        await self._ensure_recovered()
        return encode_table(self.table)

    async def index(self) -> list[tuple[str, str, str, str]]:
        """Return name, version, state and reason of every model version, and names of models never loaded."""
        await self._ensure_recovered()
        self.table.require_started()
        return self._drift.marked(await self._requests.index())

    async def load(self, asked: LoadRequest) -> None:
        """Load or reload a model on request, see `Requests.load`."""
        await self._require_explicit()
        # A model's process asks by msgpack, which makes a list of the tuple.
        await self._requests.load(LoadRequest(*asked))
        await self._drift.look()

    async def registered(self) -> dict[str, str]:
        """Return the directories of models that are served from outside the repositories, by name."""
        await self._ensure_recovered()
        return self._requests.registered()

    async def unload(
        self, name: str, unload_dependents: bool = False, requester: str = "", who: str = ""
    ) -> None:
        """Take a model out of service; an unknown model is no error (as in Triton)."""
        await self._require_explicit()
        await self._requests.unload(name, unload_dependents, requester, who)
        entries = self.lifecycle.entries.items()
        await self._started.forget(
            [each for each, versions in entries if all(e.unloaded_by_request for e in versions.values())]
        )

    async def demand(self, name: str) -> None:
        """Have an idle model served, by its identifier; return when every ingress routes to a replica.

        Raises:
            InferError: UNAVAILABLE with the reason why it is not.
        """
        await self._ensure_recovered()
        if not await self._scaler.request(name):
            await self._on_demand.bring(name)

    async def report_use(self, uses: bytes) -> bytes:
        """Record what the replicas of a node use (`UseReport`); return a `ResidencyReport`; both msgpack."""
        await self._ensure_recovered()
        return self._on_demand.report(uses)

    async def explain(self, application: str, reason: str) -> None:
        """Show why a replica of an application is not started yet; with "" that it has been."""
        await self._ensure_recovered()
        await self.lifecycle.change_served(application, reason=reason)

    async def override_listing(self, digest: str) -> list[tuple[str, int]]:
        """Return paths and sizes of the files of a load request, for a replica on another node."""
        return await asyncio.to_thread(self._overrides.listing, digest)

    async def override_chunk(self, digest: str, path: str, offset: int) -> bytes:
        """Return some bytes of such a file."""
        return await asyncio.to_thread(self._overrides.read, digest, path, offset)

    async def configure(self, change: bytes, current: bytes) -> None:
        """Change live settings, see `RoutingPublisher.configure`; return when every ingress applies them."""
        await self._ensure_recovered()
        configure_logging(self._publisher.configure(change, current).log)
        await self.lifecycle.publish_and_wait()

    async def rollout(self, name: str) -> bytes:
        """Return the rollout of a model that is on, or its last one; see `RolloutDriver.status`."""
        await self._ensure_recovered()
        return to_msgpack(self._rollouts.status(self.table.identify(name)))

    async def rollout_history(self, name: str) -> bytes:
        """Return the `RolloutHistory` of a model; see `RolloutDriver.history`."""
        await self._ensure_recovered()
        return to_msgpack(self._rollouts.history(self.table.identify(name)))

    async def change_rollout(self, name: str, change: bytes, who: str) -> bytes:
        """Change or start a rollout by a `RolloutChange`, see `RolloutDriver.change`; return its status.

        Raises:
            InferError: also NOT_FOUND for a model of no repository, INVALID_ARG for one that cannot be read.
        """
        await self._ensure_recovered()
        self.table.require_started()
        asked = msgspec.msgpack.decode(change, type=RolloutChange)
        try:
            status = await self._rollouts.change(self.table.identify(name), asked, who)
            if asked.action == "forget" and self._settings.repository.control_mode == "poll":
                self._background.start(self.lifecycle.load_quietly(self.table.identify(name)))
            return to_msgpack(status)
        except UnknownModel:
            raise not_found(
                f"model '{name}' is not in a model repository, so there is no version to roll out"
            ) from None
        except PollFailure as error:
            raise invalid_arg(error.message) from error

    async def report_outcomes(self, report: bytes) -> None:
        """Add an `OutcomeReport` of an ingress."""
        await self._ensure_recovered()
        await self._rollouts.report(msgspec.msgpack.decode(report, type=OutcomeReport))

    async def report_scores(self, report: bytes) -> str:
        """Add a `ScoreReport` of an ingress; return what names this start of the manager."""
        await self._ensure_recovered()
        self._rollouts.scores.add(msgspec.msgpack.decode(report, type=ScoreReport))
        return self._rollouts.scores.name

    async def report_drift(self, report: bytes) -> bytes:
        """Add a `DriftReport` of an ingress; return a `DriftAnswer`; both msgpack."""
        await self._ensure_recovered()
        return to_msgpack(self._drift.report(msgspec.msgpack.decode(report, type=DriftReport)))

    async def report_cost(self, report: bytes) -> bytes:
        """Add a `CostReport` of an ingress; return a `CostAnswer`; both msgpack."""
        return to_msgpack(await self.cost.report(msgspec.msgpack.decode(report, type=CostReport)))

    async def drift(self, name: str, version: str) -> bytes:
        """Return the drift of a version of a model, see `DriftMonitor.status`."""
        await self._ensure_recovered()
        return to_msgpack(self._drift.status(self.table.identify(name), version))

    async def check_health(self) -> None:
        """Raise when the start failed (a Serve hook)."""
        self._ensure_started()
        if self._start is not None and self._start.done() and not self._start.cancelled():
            error = self._start.exception()
            if error is not None:
                raise RuntimeError(f"the repository manager could not start: {error}")

    def _ensure_started(self) -> None:
        # The constructor runs outside of the event loop; the first call from Serve starts the work.
        if self._start is None:
            self._start = asyncio.get_running_loop().create_task(self._start_up())

    async def _ensure_recovered(self) -> None:
        """Wait until the state is recovered: a table without a running model would take it out of service."""
        self._ensure_started()
        await self._recovered.wait()

    async def _require_explicit(self) -> None:
        await self._ensure_recovered()
        self.table.require_started()
        if self._settings.repository.control_mode != "explicit":
            logger.warning("refused to load or unload on request, which needs --model-control-mode=explicit")
            raise load_messages.not_explicit(self._settings.repository.control_mode)

    async def _start_up(self) -> None:
        lifecycle = self.lifecycle
        lost = await recover(lifecycle, self._catalog, self._overrides, self._ingress, self._background)
        served = frozenset(lifecycle.entries)
        # A restart of the manager must not make the server unready.
        self.lifecycle.initialised = self.lifecycle.all_loaded = bool(served)
        await self._follow_nodes()
        self._background.start(asyncio.to_thread(self._last_table.discard_others))
        await self._on_demand.start(self._catalog, lambda: applications.routed_ensembles(*self._ingress))
        await self.lifecycle.publish()
        self._recovered.set()
        self._background.start(self._rollouts.run(lambda: self._stopping))
        self._background.start(self._scaler.run(lambda: self._stopping))
        self._background.start(self._drift.run(lambda: self._stopping))
        self._background.start(self.cost.run(lambda: self._stopping))
        await self._requests.release_files()
        loads = StartLoads(
            self._settings, lifecycle, self._catalog, self._on_demand, self._started, self._key
        )
        await loads.run(served, lost, lambda: self.table, self._background, lambda: self._stopping)

    def _channels(self) -> Pools:
        return Pools(node_id(), self._key, self._settings.cluster.transport)

    async def _follow_nodes(self) -> None:
        """Read the GPUs of the nodes; where channels reach other nodes, follow the nodes from now on."""
        nodes = await LoneThread("nodes at the start").run(gpus_by_node, ASK_S)
        self._set_gpus(nodes)
        cluster = self._settings.cluster
        if cluster.channel_address == NODE_ADDRESS:
            spreading = Spreading(lambda: self.lifecycle.loaded)

            def changed(nodes: Sequence[int]) -> None:
                self._set_gpus(nodes)
                spreading.nodes_changed()

            watch = NodeWatch(self._ingress, self._settings.ingress.replicas, changed)
            self._background.start(watch.run(lambda: self._stopping))
            self._background.start(spreading.run(lambda: self._stopping))
        else:
            warn_of_nodes_out_of_reach(len(nodes), cluster.channel_address)

    def _set_gpus(self, nodes: Sequence[int]) -> None:
        """Let models use the CUDA ordinals of the node with the most GPUs."""
        self._catalog.gpus = tuple(range(max(nodes, default=0)))
