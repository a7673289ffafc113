"""The server's side of `pb_utils`: calls to other models, and the model repository.

A replica opens a router of its own at its model's first call. The router follows the repository manager as
that of an ingress does, so a call goes straight to a replica of the called model.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any, Final, TypeVar

from tritonclient.grpc import model_config_pb2 as mc

from app.core.cost.reports import CallUse
from app.core.errors import InferError, internal, invalid_arg, unavailable
from app.core.failures import CANCELLED, shutting_down
from app.core.inference import Cancel, Sink
from app.core.observability.statistics import EnsembleReports
from app.core.system.tasks import Tasks
from app.core.tensors import InferRequest, InferResponse
from app.cost.tap import CostTap
from app.dispatch.router import Router
from app.rollout.reporter import OutcomeReporter
from app.routing.manager_client import LoadRequest, ManagerClient, follow
from app.routing.pools import Pools
from app.routing.table import NotLoaded, VersionEntry
from app.transport.loops.inline import InlineEventLoop
from app.transport.loops.suspension import ResponseFuture, count_waiting, current_watchdog
from app.transport.loops.thread import LoopThread
from backends.base import Request
from backends.python.api.calls import Calls
from backends.python.api.errors import TritonModelException
from backends.python.api.event_loop import EventLoop
from deployments.bls.calls import BlsCall
from deployments.bls.cluster import Cluster, RayCluster
from deployments.spec import ModelSpec

T = TypeVar("T")

logger = logging.getLogger(__name__)

_FIRST_TABLE_S: Final = 15.0


class Connection:
    """A router and the manager that it follows; used on the data-plane loop."""

    def __init__(
        self, router: Router, manager: ManagerClient, take_counts: Callable[[], list[CallUse]] = list
    ) -> None:
        """`take_counts` returns what was answered since the last time."""
        self.router = router
        self.manager = manager
        self.take_counts = take_counts
        self._tasks = Tasks()

    @classmethod
    async def open(cls, spec: ModelSpec, cluster: Cluster) -> "Connection":
        """Make a router and wait for its first table.

        Raises:
            InferError: UNAVAILABLE when the manager does not answer.
        """
        loop = asyncio.get_running_loop()
        # Opening a handle calls the controller, and blocks.
        handle = await loop.run_in_executor(None, cluster.open_manager, spec.manager)
        pools = Pools(cluster.node_id(), spec.key, spec.server.transport, cluster.watch_replicas)
        manager = ManagerClient(handle)
        calls = CostTap()
        router = Router(pools, demand=manager.demand, tap=calls)
        connection = cls(router, manager, calls.take)
        routing = asyncio.Event()
        watcher = f"{spec.application}-{uuid.uuid4().hex}"
        following = follow(connection.manager, router, watcher, lambda _: routing.set())
        reporting = OutcomeReporter(router.rollouts, connection.manager.report_outcomes, watcher).run()
        for work in (following, reporting):
            connection._tasks.start(work)
        try:
            async with asyncio.timeout(_FIRST_TABLE_S):
                await routing.wait()
        except TimeoutError:
            await connection.close()
            raise unavailable("the repository manager does not answer") from None
        return connection

    async def close(self) -> None:
        """Stop following the manager and close every channel."""
        await self._tasks.cancel()
        await self.router.close(1.0)


class ModelCalls(Calls):
    """The `backends.python.api.server_api.ServerApi` of the model of this replica."""

    def __init__(self, spec: ModelSpec, plane: LoopThread, cluster: Cluster | None = None) -> None:
        super().__init__(spec.identifier)
        self._spec = spec
        self._plane = plane
        self._cluster = cluster or RayCluster()
        self._opening: asyncio.Task[Any] | None = None
        self._sending = Tasks()
        self._inline_loop: InlineEventLoop | None = None
        self.loaded = False
        """Whether the model is loaded; until then, the models that it loads are part of its own load."""

    def send(
        self, infer: InferRequest, sink: Sink, decoupled: bool, callers: Sequence[Request] = ()
    ) -> Cancel:
        call = BlsCall(infer, sink, callers)
        # In an empty context: a connection that the call opens would keep the execution's requests alive.
        if self._plane.is_current:
            Context().run(self._start_call, call, decoupled)
        else:
            self._plane.loop.call_soon_threadsafe(self._start_call, call, decoupled, context=Context())
        return partial(self._cancel, call)

    def _cancel(self, call: BlsCall, advice: bool = False) -> None:
        self._plane.loop.call_soon_threadsafe(call.cancel, advice)

    def send_and_wait(self, infer: InferRequest, callers: Sequence[Request]) -> InferResponse:
        response: ResponseFuture[InferResponse] = ResponseFuture()
        self.send(infer, response.set, False, callers)
        return response.wait()

    def run(self, coroutine: Coroutine[Any, Any, Any], loop: EventLoop) -> Any:
        watchdog = current_watchdog()
        if watchdog is None:
            return count_waiting(coroutine, loop.run)
        if self._inline_loop is None:
            self._inline_loop = InlineEventLoop(self._plane.loop, watchdog)
        return self._inline_loop.run(coroutine)

    def load_model(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        self._manage(self._load(name, config, files))

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        unloading = self._unload(name, unload_dependents)
        if name in (self._spec.name, self.caller):  # draining waits for the request that unloads: do not wait
            self._schedule(unloading).add_done_callback(_log_failure)
        else:
            self._manage(unloading)

    def is_model_ready(self, name: str, version: str) -> bool:
        return self._run(self._ready(name, version))

    def find_model(self, name: str, version: str) -> tuple[mc.ModelConfig, int, bool]:
        opened = self._opened()
        if opened is not None:  # a table does not change, so that any thread may read it
            with suppress(NotLoaded):
                return _described(opened.router, name, version)
        return self._run(self._find(name, version))

    def ensembles(self) -> EnsembleReports:
        """Return the counters of the ensembles that the calls ran here; on the data-plane loop."""
        opened = self._opened()
        return [] if opened is None else opened.router.ensembles.reports()

    def take_counts(self) -> list[CallUse]:
        """Return what the calls were answered since the last time; on the data-plane loop."""
        opened = self._opened()
        return [] if opened is None else opened.take_counts()

    async def close(self) -> None:
        """Close the connection, if a call opened one; on the data-plane loop."""
        opened = self._opened()
        if opened is not None:
            await opened.close()
        elif self._opening is not None:
            self._opening.cancel()

    def _opened(self) -> Connection | None:
        opening = self._opening
        if opening is None or not opening.done() or opening.cancelled() or opening.exception() is not None:
            return None
        connection: Connection = opening.result()
        return connection

    @property
    def _requester(self) -> str:
        return self._spec.application if self.loaded else self._spec.identifier

    def _schedule(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self._plane.loop)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._schedule(work).result()

    def _manage(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            self._run(work)
        except InferError as error:
            raise TritonModelException(error.message) from error

    async def _connection(self) -> Connection:
        """Return the connection; open it at the first call, and again after a failure."""
        if self._opening is None:
            coroutine = Connection.open(self._spec, self._cluster)
            self._opening = asyncio.get_running_loop().create_task(coroutine, context=Context())
        opening = self._opening
        try:
            connection: Connection = await asyncio.shield(opening)
        except Exception:
            if self._opening is opening:
                self._opening = None
            raise
        return connection

    def _start_call(self, call: BlsCall, decoupled: bool) -> None:
        """Send a call; only while there is no connection, in a task."""
        opened = self._opened()
        if opened is not None:
            self._send(opened.router, call, decoupled)
            return
        self._send_after(self._connection(), call, decoupled)

    def _send_after(self, work: Coroutine[Any, Any, object], call: BlsCall, decoupled: bool) -> None:
        """Send a call after work that it needs: to open the connection, or to load an idle model."""

        def done(task: asyncio.Task[object]) -> None:
            error = None if task.cancelled() else task.exception()
            opened = self._opened()
            if error is not None:
                call.fail(error)
            elif task.cancelled() or opened is None:
                call.fail(shutting_down("replica"))
            else:
                self._send(opened.router, call, decoupled)

        self._sending.start(work).add_done_callback(done)

    def _send(self, router: Router, call: BlsCall, decoupled: bool) -> None:
        request = call.request
        try:
            entry = self._resolve(router, request, decoupled)
            if call.unwanted:
                call.fail(CANCELLED)
                return
            if entry.split is not None:
                request = call.split_request()
            sent = entry.target.submit(request, call.deliver)
        except NotLoaded as idle:
            self._send_after(router.wait_loaded(idle.entry), call, decoupled)
            return
        except Exception as error:
            call.fail(error)
            return
        call.sent(sent)

    @staticmethod
    def _resolve(router: Router, infer: InferRequest, decoupled: bool) -> VersionEntry:
        """Return the version to call.

        Raises:
            InferError: INTERNAL for a model that is not ready, or decoupled although `decoupled` is False;
                INVALID_ARG for a circular call that no instance is left for.
        """
        name = infer.model_name
        try:
            entry = router.resolve(name, infer.model_version)
        except NotLoaded:
            raise
        except InferError as error:
            raise _not_run(name, error.message) from error
        if entry.waits_for_itself(infer.chain):
            raise _circular(infer.chain, entry.name)
        if entry.decoupled and not decoupled:
            raise _not_run(
                name,
                f"Model {name} is using the decoupled. The current BLS request call doesn't support models "
                "using the decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' "
                "or 'async_exec' calls for decoupled models.'",
            )
        return entry

    async def _load(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        asked = LoadRequest(name, config or None, files, requester=self._requester)
        await (await self._connection()).manager.load(asked)

    async def _unload(self, name: str, unload_dependents: bool) -> None:
        requester = self._requester
        await (await self._connection()).manager.unload(name, unload_dependents, requester)

    async def _find(self, name: str, version: str) -> tuple[mc.ModelConfig, int, bool]:
        router = (await self._connection()).router
        try:
            router.resolve(name, version)
        except NotLoaded as idle:
            await router.wait_loaded(idle.entry)
        return _described(router, name, version)

    async def _ready(self, name: str, version: str) -> bool:
        try:
            router = (await self._connection()).router
            return router.available(router.resolve(name, version))
        except NotLoaded:
            return True
        except InferError:
            return False


def _described(router: Router, name: str, version: str) -> tuple[mc.ModelConfig, int, bool]:
    entry = router.resolve(name, version)
    return entry.model_config, entry.version, router.available(entry)


def _log_failure(unloaded: "Future[None]") -> None:
    if not unloaded.cancelled() and (error := unloaded.exception()) is not None:
        logger.error("a model could not unload itself: %s", error)


def _not_run(model: str, text: str) -> InferError:
    return internal(f"Model {model} - Error when running inference: {text}")


def _circular(chain: tuple[str, ...], model: str) -> InferError:
    return invalid_arg(
        f"circular call of models: {' -> '.join((*chain, model))}; a model that calls itself, "
        "directly or through others, would wait for ever"
    )
