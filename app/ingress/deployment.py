"""The ingress: both fronts over one service, routed by the repository manager's tables.

A plain class; `nereid/server/main.py` makes it a Serve deployment. Everything runs on a data-plane loop of
its own.
"""

import asyncio
import os
import time
import uuid
from collections.abc import Coroutine, Iterator
from typing import Any

import msgspec

from app.core.encoding import to_msgpack
from app.core.files.private_files import socket_root
from app.core.identifiers import name_of
from app.core.inference import Cancel, Sink
from app.core.observability.log import configure_logging
from app.core.tensors import InferRequest
from app.cost.assembly import Place
from app.drift.reporter import DriftReporter
from app.drift.tap import DriftTap
from app.feedback.reporter import ScoreReporter
from app.ingress.assembly import Serving, make_account, make_cost_tap, make_router, make_service, make_tape
from app.ingress.client_memory.region_files import region_directory
from app.ingress.cluster_report import ClusterReport
from app.ingress.exit_report import ExitReport
from app.ingress.service.peers import Peers
from app.ingress.service.use_reports import UseReports
from app.ray_adapter import store
from app.ray_adapter.cluster_health import ClusterHealth, actor_part, server_health
from app.ray_adapter.node import NODE_ADDRESS, listen_host, machines, node_id, replica_deployment
from app.ray_adapter.orphans import end_with_raylet, starter
from app.ray_adapter.serve.handles import connect
from app.rollout.reporter import OutcomeReporter
from app.routing.handle_calls import HandleCalls
from app.routing.last_table import LastTable
from app.routing.manager_client import ManagerClient, follow
from app.routing.pools import Pools
from app.routing.table import NotLoaded, RoutingTable
from app.routing.targets import in_turn
from app.routing.waiting_room import resolve_loaded
from app.settings.settings import ServerSettings
from app.transport.loops.thread import LoopThread, freeze_heap, share_interpreter

_NOTICE_S = 0.5
"""Time between not-ready health and the closing of listening sockets, for load balancers to notice."""
_FAULT_S = 5.0
"""What has ended is mostly started again in less: requests wait for it. They are answered within 10 s."""


class Ingress:
    """One ingress replica. Several on one node share the ports (SO_REUSEPORT)."""

    def __init__(self, settings: ServerSettings, key: bytes, manager: Any) -> None:
        end_with_raylet()
        configure_logging(settings.log)
        self._settings = settings
        self._key = key
        self._id = uuid.uuid4().hex
        self._health: list[ClusterHealth] = []
        connect(manager)
        self._manager = ManagerClient(manager, self._fault)
        self._plane = LoopThread("data-plane")
        self._node_id = node_id()
        self._deployment = replica_deployment()
        self._plane.call(self._start())
        freeze_heap()
        share_interpreter()
        self._plane.schedule_gc()

    def record_replica_metadata(self) -> dict[str, str]:
        """Return this ingress's channel addresses for the other ingresses (a Serve hook, called once)."""
        peers = self._service.peers
        return {} if peers is None else {"node_id": self._node_id, **peers.addresses}

    async def routed_ensembles(self) -> list[tuple[str, int]] | None:
        """Return identifier and version of ensembles and idle models it routes to; None before a table.

        For a restarted manager, which finds deployed models in Serve, but these have no deployment.
        """
        table = self._router.table
        found = [(entry.name, entry.version) for entry in table.ready if entry.ensemble or entry.idle]
        return found if table.number else None

    async def routed_splits(self) -> bytes:
        """Return the rollouts by which it splits requests (msgpack), for a manager that has lost them."""
        return to_msgpack(self._router.table.splits)

    async def call(self, name: str, version: str, *args: Any, **kwargs: Any) -> Any:
        """Run a request that came through a Serve handle (`nereid.model_handle`); see `HandleCalls.call`.

        Raises:
            InferError: no such version is ready, or the inference failed.
        """
        try:
            entry = self._router.resolve(name, version)
        except NotLoaded:
            entry = await self._plane.run(resolve_loaded(self._router, name, version))

        def send(request: InferRequest, sink: Sink) -> Cancel:
            return entry.target.submit(request, sink).cancel

        calls = HandleCalls(entry.model_config, send, self._plane, name, version)
        return await calls.call(*args, **kwargs)

    async def check_health(self) -> None:
        """Serve's health hook; raising makes Serve replace this replica."""
        if not self._plane.alive or any(task.done() for task in self._serving.following):
            raise RuntimeError("the ingress no longer follows the repository manager or the file of tokens")

    async def __del__(self) -> None:
        """Serve's shutdown hook."""
        await self._plane.run(self.drain())
        self._plane.stop()

    async def drain(self) -> None:
        """Report not ready, refuse new connections, and answer requests on the open ones until they close."""
        self._service.begin_exit()
        await asyncio.sleep(_NOTICE_S)
        grace = self._settings.server.exit_timeout_s
        report = ExitReport(grace, self._serving.fronts, self._router)
        reporting = asyncio.ensure_future(report.run())
        await self._serving.stop(grace)
        reporting.cancel()
        report.finish()
        if self._service.peers is not None:
            await self._service.peers.close()
        await self._router.close(1.0)
        await self._serving.close()
        if self._tape is not None:
            await asyncio.to_thread(self._tape.close)
        self._service.shared_memory.close()

    async def _start(self) -> None:
        settings = self._settings
        pools = Pools(self._node_id, self._key, settings.cluster.transport)
        self._tape = make_tape(settings, self._key)
        watched = DriftTap()
        counted = make_cost_tap(settings)
        tap = in_turn(watched, None if self._tape is None else self._tape.tap, counted)
        self._router = router = make_router(settings, pools, self._manager.demand, tap)
        place = Place(self._id, self._node_id, self._key, starter())
        cost = make_account(settings, place, router, self._manager.report_cost, counted)
        self._drift = DriftReporter(watched, self._manager.report_drift, self._id, router.tap_anew)
        use = UseReports(router, self._manager.report_use) if settings.residency.memory_bytes else None
        self._service = make_service(settings, router, self._manager, region_directory(self._key), self._tape)
        alone = settings.ingress.replicas == 1
        suffix = "" if alone else f".{os.getpid()}"
        self._serving = Serving(
            settings, self._service, self._manager.configure, suffix, self._tape, self._drift, cost, machines
        )
        if not alone:
            await self._open_peers()
        self._routing = asyncio.Event()
        last = LastTable(store, self._key).read
        following = follow(self._manager, router, self._id, self._on_table, last)
        self._health = self._cluster_health()
        watching = [health.watch() for health in self._health]
        reporting = OutcomeReporter(router.rollouts, self._manager.report_outcomes, self._id).run()
        using = [each.run() for each in (use, cost) if each is not None]
        tasks = (following, *watching, reporting, self._drift.run(), *using, *self._telling_scores())
        self._serving.following += [asyncio.get_running_loop().create_task(task) for task in tasks]
        # Where several replicas share a port, one that listens gets requests at once: it needs a table first.
        await self._routing.wait()
        await self._serving.open(use)

    def _telling_scores(self) -> Iterator[Coroutine[None, None, None]]:
        """Yield what tells the manager of feedback on models in a rollout, if there is a tape."""

        def models() -> dict[str, str]:
            return {name_of(split.name): split.rollout for split in self._router.table.splits}

        keeper = self._service.keeper
        if keeper is not None:
            yield ScoreReporter(keeper, models, self._manager.report_scores, self._node_id).run()

    async def _open_peers(self) -> None:
        peers = Peers(self._service.ensembles, self._key)
        host = listen_host(self._settings.cluster.channel_address)
        await peers.open(socket_root(), host, self._router.pools.open_control_pool(*self._deployment))
        self._service.peers = peers

    def _cluster_health(self) -> list[ClusterHealth]:
        manager = actor_part("the repository manager", self._manager.process)
        many_nodes = self._settings.cluster.channel_address == NODE_ADDRESS
        report = ClusterReport(self._service)
        return server_health(manager, many_nodes, report.unready, report.degraded)

    def _fault(self) -> str:
        """Return what has kept the repository manager from working for some time."""
        now = time.monotonic()
        return ", ".join(filter(None, (health.lasting(_FAULT_S, now) for health in self._health)))

    def _on_table(self, table: RoutingTable) -> None:
        self._serving.observer.apply(table.live)
        if table.live is not None:
            self._router.pools.broadcast_control("log", msgspec.to_builtins(table.live.log))
        self._drift.hurry()
        self._routing.set()
