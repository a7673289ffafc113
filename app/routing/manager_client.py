"""Client of the repository manager, for ingresses and for replicas that call other models."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple, Protocol

import msgspec

from app.core.cost.reports import CostAnswer, CostReport
from app.core.drift.counts import DriftAnswer, DriftReport
from app.core.drift.status import DriftStatus
from app.core.encoding import to_msgpack
from app.core.errors import InferError, unavailable
from app.core.feedback.reports import ScoreReport
from app.core.residency import ResidencyReport, UseReport
from app.core.rollout.history import RolloutHistory
from app.core.rollout.outcomes import OutcomeReport
from app.core.rollout.status import RolloutChange, RolloutStatus
from app.core.system.processes import Process, process
from app.routing.table import RoutingTable
from app.routing.table_bytes import decode_table

logger = logging.getLogger(__name__)

_RETRY_S = 0.5
_CONFIRM_S = 1.0
_LAST_S = 10.0
"""Time for the last table of before to be read."""
_FIRST_S = 1.0
"""Time in which a manager that is there has answered an ingress that starts."""
_LOOK_S = 1.0
_PATIENCE = 2
"""Looks in a row at which something that the manager needs is missing, after which nobody waits for it."""
_SILENCE_S = 8.0
"""Time without any answer of the manager, after which nobody waits for it: it answers `watch` after 5 s."""
_AWAY = "models cannot be loaded, unloaded, replaced or listed at present"
MAX_CALLS = 512
"""Calls of clients in flight: fewer than Serve's limit for the manager, which ingresses also use."""
MAX_FILE_BYTES = 512 << 20
"""Bytes of the files in those calls together; a single call may exceed it."""


class LoadRequest(NamedTuple):
    """A load or reload of a model on request.

    Attributes:
        name: the model, in every namespace that has it.
        config: a configuration as JSON instead of the one on disk.
        files: files by path, instead of those on disk; they need a `config`.
        directory: load it from here, outside the repositories, without `config` and `files`.
        requester: the replica that waits for it; "" for a client.
        who: the client, as histories name it.
    """

    name: str
    config: str | None = None
    files: Mapping[str, bytes] = {}
    directory: str = ""
    requester: str = ""
    who: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of its files."""
        return sum(map(len, self.files.values()))


class ManagerClient:
    """The repository manager behind its Serve handle.

    A call goes on after its client has disconnected, so calls in flight are limited in number and bytes. It
    may take as long as it takes while the manager can work; else it is answered within ten seconds. Who makes
    calls also follows the manager (`follow`), which shows that it answers.

    Args:
        handle: the Serve handle.
        fault: returns what keeps the manager from working, "" for nothing, as far as this process knows.
    """

    def __init__(self, handle: Any, fault: Callable[[], str] = lambda: "") -> None:
        self._handle = handle
        self._fault = fault
        self._calls: dict[asyncio.Future[Any], int] = {}
        self._heard = 0.0

    async def index(self) -> list[tuple[str, str, str, str]]:
        rows: list[tuple[str, str, str, str]] = await self._call(self._handle.index)
        return rows

    async def load(self, asked: LoadRequest) -> None:
        """Load a model; see `Requests.load`."""
        self._require_health()
        await self._call(self._handle.load, asked._replace(files=dict(asked.files)), nbytes=asked.nbytes)

    async def registered(self) -> dict[str, str]:
        """Return the directories of registered models that are served, by name."""
        found: dict[str, str] = await self._call(self._handle.registered)
        return found

    async def unload(self, name: str, unload_dependents: bool, requester: str = "", *, who: str = "") -> None:
        """Unload a model; `requester` and `who` as those of a `LoadRequest`."""
        self._require_health()
        await self._call(self._handle.unload, name, unload_dependents, requester, who)

    async def demand(self, name: str) -> None:
        """Have a model, by its identifier, served by a replica; return when every ingress routes to it.

        Raises:
            InferError: UNAVAILABLE with the reason why it is not.
        """
        await self._call(self._handle.demand, name)

    async def report_use(self, uses: UseReport) -> ResidencyReport:
        """Tell what the replicas of this node use; return the figures of all models."""
        answer = await self._call(self._handle.report_use, to_msgpack(uses))
        return msgspec.msgpack.decode(answer, type=ResidencyReport)

    async def configure(self, change: bytes, current: bytes) -> None:
        """Change live settings; return when every ingress has applied them."""
        await self._call(self._handle.configure, change, current)

    async def rollout(self, name: str) -> RolloutStatus:
        """Return the rollout of a model that is on, or its last one."""
        return msgspec.msgpack.decode(await self._call(self._handle.rollout, name), type=RolloutStatus)

    async def change_rollout(self, name: str, change: RolloutChange, who: str) -> RolloutStatus:
        """Change or start a rollout in the name of `who`; return when every ingress routes by the change."""
        self._require_health()
        encoded = to_msgpack(change)
        status = await self._call(self._handle.change_rollout, name, encoded, who)
        return msgspec.msgpack.decode(status, type=RolloutStatus)

    async def rollout_history(self, name: str) -> RolloutHistory:
        """Return what a model has served."""
        found = await self._call(self._handle.rollout_history, name)
        return msgspec.msgpack.decode(found, type=RolloutHistory)

    async def report_outcomes(self, report: OutcomeReport) -> None:
        """Tell what became of the requests of rollouts."""
        await self._call(self._handle.report_outcomes, to_msgpack(report))

    async def report_scores(self, report: ScoreReport) -> str:
        """Tell what clients have said of answers of models in a rollout; return what names the manager."""
        name: str = await self._call(self._handle.report_scores, to_msgpack(report))
        return name

    async def report_drift(self, report: DriftReport) -> DriftAnswer:
        """Tell what was counted of models; return what is to be counted, and the figures of all."""
        answer = await self._call(self._handle.report_drift, to_msgpack(report))
        return msgspec.msgpack.decode(answer, type=DriftAnswer)

    async def report_cost(self, report: CostReport) -> CostAnswer:
        """Tell what was consumed; return the figures of the whole server, and whose budget is spent."""
        answer = await self._call(self._handle.report_cost, to_msgpack(report))
        return msgspec.msgpack.decode(answer, type=CostAnswer)

    async def drift(self, name: str, version: str) -> DriftStatus:
        """Return the drift of a version of a model."""
        found = await self._call(self._handle.drift, name, version)
        return msgspec.msgpack.decode(found, type=DriftStatus)

    async def _call(self, method: Any, *arguments: Any, nbytes: int = 0) -> Any:
        calls = self._calls
        if calls and (len(calls) >= MAX_CALLS or sum(calls.values()) + nbytes > MAX_FILE_BYTES):
            raise unavailable("too many requests to the repository manager are in flight")
        call = asyncio.ensure_future(_result(method.remote(*arguments)))
        calls[call] = nbytes
        call.add_done_callback(self._on_done)
        missed, begun = 0, monotonic()
        while not (await asyncio.wait({call}, timeout=_LOOK_S))[0]:
            fault = self._fault()
            missed = missed + 1 if fault else 0
            if missed < _PATIENCE and monotonic() - max(begun, self._heard) > _SILENCE_S:
                fault = "the repository manager does not answer"
            elif missed < _PATIENCE:
                continue
            raise unavailable(f"{_AWAY}: {fault}; what was begun goes on when that is back")
        return call.result()

    def _require_health(self) -> None:
        """Refuse a change that nobody could carry out now, and that would be made when nobody expects it."""
        if fault := self._fault():
            raise unavailable(f"{_AWAY}: {fault}; nothing was changed, repeat the request later")

    def _on_done(self, call: asyncio.Future[Any]) -> None:
        del self._calls[call]
        if not call.cancelled():
            call.exception()  # the caller may be gone, and asyncio logs exceptions that are never retrieved

    async def process(self) -> Process | None:
        """Return the manager's process if it is on this node."""
        from app.ray_adapter.node import node_id  # a process without a cluster has no Ray

        node, pid = await _result(self._handle.process.remote())
        return process(pid) if node == node_id() else None

    async def watch(self, ingress: str, applied: int) -> bytes:
        """Wait for a routing table newer than `applied`; b"" when there is none for now.

        Cancellation also ends the manager's side: Serve does not stop the manager while a call is in flight.
        """
        response = self._handle.watch.remote(ingress, applied)
        try:
            table: bytes = await _result(response)
        except asyncio.CancelledError:
            response.cancel()
            raise
        self._heard = monotonic()
        return table

    async def receive(self, ingress: str, number: int) -> None:
        """Acknowledge a table to the manager."""
        await _result(self._handle.receive.remote(ingress, number))


class TableUser(Protocol):
    """Something that applies routing tables, such as a router."""

    table: RoutingTable

    async def apply(self, table: RoutingTable) -> None:
        """Use this table from now on; set `table`."""


async def follow(
    manager: ManagerClient,
    router: TableUser,
    watcher: str,
    applied: Callable[[RoutingTable], object],
    last: Callable[[], RoutingTable | None] | None = None,
) -> None:
    """Keep a router at the manager's newest table, for ever; call `applied` with each table after that.

    Where the manager does not answer soon at first, the router begins with the table that `last` reads.
    """
    if last is not None:
        await _begin(manager, router, watcher, applied, last)
    while True:
        try:
            if answer := await manager.watch(watcher, router.table.number):
                table = decode_table(answer)
                await _apply(manager, router, watcher, table)
                applied(table)
        except InferError as error:
            logger.warning("%s; serving on by the last routing table", error.message)
            await asyncio.sleep(_RETRY_S)
        except Exception:
            logger.exception("following the repository manager")
            await asyncio.sleep(_RETRY_S)


async def _apply(manager: ManagerClient, router: TableUser, watcher: str, table: RoutingTable) -> None:
    """Apply a table; tell the manager once a second that it was received, as long as this takes."""
    confirming = asyncio.ensure_future(_confirm(manager, watcher, table.number))
    try:
        await router.apply(table)
    finally:
        confirming.cancel()


async def _confirm(manager: ManagerClient, watcher: str, number: int) -> None:
    with suppress(InferError):  # the next `watch` says so too
        while True:
            await manager.receive(watcher, number)
            await asyncio.sleep(_CONFIRM_S)


async def _begin(
    manager: ManagerClient,
    router: TableUser,
    watcher: str,
    applied: Callable[[RoutingTable], object],
    last: Callable[[], RoutingTable | None],
) -> None:
    """Wait for the manager's first table, or else begin with the last one of before."""
    asking = asyncio.ensure_future(manager.watch(watcher, router.table.number))
    try:
        if (await asyncio.wait({asking}, timeout=_FIRST_S))[0] and asking.exception() is None:
            return
        async with asyncio.timeout(_LAST_S):
            table = await asyncio.to_thread(last)
        if table:
            logger.warning("the repository manager is away; serving by the last routing table")
            await router.apply(table)
            applied(table)
    except Exception:
        logger.exception("reading the last routing table")
    finally:
        asking.cancel()


async def _result(response: Awaitable[Any]) -> Any:
    """Await a Serve call; re-raise an `InferError` of the manager as a plain one."""
    try:
        return await response
    except InferError as error:
        # Serve raises a subclass made of our error and its own task error.
        raise error.failure.error() from None
    except Exception as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, InferError):
            raise cause from None
        raise unavailable(f"the repository manager does not answer: {type(error).__name__}") from error
