"""Requests that wait for a replica of their version, which is idle now: loaded by its first request.

The manager is asked once for all requests that wait for a version. Everything runs on the data-plane loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic
from typing import Final, Protocol

import msgspec

from app.core.errors import ErrorCode, Failure, FailureReason, InferError
from app.core.failures import CANCELLED, EXPIRED, shutting_down
from app.core.inference import InFlight, Sink
from app.core.system.tasks import Tasks
from app.core.tensors import InferRequest
from app.routing.refusals import not_ready
from app.routing.table import NotLoaded, VersionEntry

logger = logging.getLogger(__name__)

_CONNECT_S: Final = 10.0
"""Time for a router to reach a replica that the manager has reported; then the manager is asked again."""
_RETRY_S: Final = 1.0
"""When to ask again after a refusal."""

Demand = Callable[[str], Awaitable[None]]
"""Asks the manager for a model, by its identifier; returns when the model is available, or raises why not."""


class WaitingLimits(msgspec.Struct, frozen=True):
    """Bounds of what waits: requests, their bytes together, and the time of one without a deadline."""

    requests: int = 1024
    nbytes: int = 256 << 20
    seconds: float = 120.0


class Models(Protocol):
    """The router, as the waiting room uses it."""

    def resolve(self, name: str, version: str = "") -> VersionEntry: ...

    async def wait_for_replica(self, name: str, version: int, timeout: float) -> bool:
        """Return whether there is nothing more to wait for: a replica is connected, or there will be none."""


class Resolves(Protocol):
    """A router, or a service over one."""

    def resolve(self, name: str, version: str = "") -> VersionEntry: ...

    async def wait_loaded(self, entry: VersionEntry) -> None:
        """Wait until an idle version is loaded; raise why it is not."""


async def resolve_loaded(models: Resolves, name: str, version: str = "") -> VersionEntry:
    """Choose the version that answers a request; load it first where only that tells its inputs and outputs.

    Raises:
        InferError: see `RoutingTable.resolve`; why the load failed.
    """
    while True:
        try:
            return models.resolve(name, version)
        except NotLoaded as absent:
            await models.wait_loaded(absent.entry)


class _Waiter:
    """Something that waits for a version: `go` is called once it is available, or `fail` with the reason."""

    __slots__ = ("fail", "go", "key", "nbytes", "timer")

    def __init__(self, go: Callable[[], None], fail: Callable[[Failure], None], nbytes: int) -> None:
        self.go = go
        self.fail = fail
        self.nbytes = nbytes
        self.key = ("", 0)
        self.timer: asyncio.TimerHandle | None = None


class WaitingCounts(msgspec.Struct):
    """Counts of requests that wait, and of those that did in vain.

    Attributes:
        requests: requests that wait now.
        nbytes: their bytes.
        refused: requests that found no place.
        expired: requests whose time was over before their version was available.
    """

    requests: int = 0
    nbytes: int = 0
    refused: int = 0
    expired: int = 0


class WaitingRoom:
    """Holds requests until their version has a replica, its load has failed, or their time is over.

    Attributes:
        counts: what waits, for metrics.
    """

    def __init__(self, models: Models, demand: Demand, limits: WaitingLimits | None = None) -> None:
        self._models = models
        self._demand = demand
        self._limits = limits or WaitingLimits()
        self._groups: dict[tuple[str, int], dict[_Waiter, None]] = {}
        """Those that wait for a version, in the order of their arrival."""
        self._tasks = Tasks()
        self.counts = WaitingCounts()

    def hold(self, entry: VersionEntry, request: InferRequest, sink: Sink) -> "WaitingCall":
        """Hold a request; it is resolved again, and submitted, when its version is available.

        Raises:
            InferError: UNAVAILABLE when too many requests wait already.
        """
        call = WaitingCall(self, self._models, entry, request, sink)
        seconds = request.deadline - monotonic() if request.deadline else self._limits.seconds
        late = EXPIRED if request.deadline else self._late(entry)
        self._add(entry, call.waiter, seconds, late)
        return call

    async def wait(self, entry: VersionEntry) -> None:
        """Wait until a version is available, without a request.

        Raises:
            InferError: the load failed, took too long, or too many wait already.
        """
        available: asyncio.Future[Failure | None] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(partial(_set, available, None), partial(_set, available), 0)
        self._add(entry, waiter, self._limits.seconds, self._late(entry))
        try:
            failure = await available
        finally:
            self.remove(waiter)
        if failure is not None:
            raise failure.error()

    async def close(self) -> None:
        """Stop waiting for the manager."""
        await self._tasks.cancel()

    def remove(self, waiter: _Waiter) -> bool:
        """Forget a waiter; return whether it was still waiting."""
        group = self._groups.get(waiter.key, {})
        if waiter not in group:
            return False
        del group[waiter]
        self.counts.requests -= 1
        self.counts.nbytes -= waiter.nbytes
        if waiter.timer is not None:
            waiter.timer.cancel()
        return True

    def _late(self, entry: VersionEntry) -> Failure:
        text = f"model '{entry.model}' is still not loaded after {self._limits.seconds:g} s"
        return Failure(ErrorCode.UNAVAILABLE, text, retry_after_s=_RETRY_S)

    def _add(self, entry: VersionEntry, waiter: _Waiter, seconds: float, late: Failure) -> None:
        limits = self._limits
        if self.counts.requests >= limits.requests or self.counts.nbytes + waiter.nbytes > limits.nbytes:
            self.counts.refused += 1
            text = f"model '{entry.model}' is not loaded, and too many requests wait for models to load"
            raise InferError(ErrorCode.UNAVAILABLE, text, FailureReason.REJECTED, _RETRY_S)
        self.counts.requests += 1
        self.counts.nbytes += waiter.nbytes
        waiter.key = key = (entry.name, entry.version)
        loop = asyncio.get_running_loop()
        waiter.timer = loop.call_later(max(0.0, seconds), self._expire, waiter, late)
        if key in self._groups:
            self._groups[key][waiter] = None
            return
        self._groups[key] = {waiter: None}
        self._tasks.start(self._bring(key))

    def _expire(self, waiter: _Waiter, late: Failure) -> None:
        if self.remove(waiter):
            self.counts.expired += 1
            waiter.fail(late)

    async def _bring(self, key: tuple[str, int]) -> None:
        """Ask for a version until it is available, or nothing waits for it."""
        failure: Failure | None = shutting_down("server")
        try:
            while self._groups[key]:
                await self._demand(key[0])
                if await self._models.wait_for_replica(*key, _CONNECT_S):
                    break
            failure = None
        except InferError as error:
            failure = error.failure
        except Exception as error:
            logger.exception("asking for model '%s'", key[0])
            failure = Failure.from_exception(error)
        finally:
            self._release(key, failure)

    def _release(self, key: tuple[str, int], failure: Failure | None) -> None:
        released = list(self._groups[key])
        for waiter in released:
            self.remove(waiter)
        del self._groups[key]
        for waiter in released:
            if failure is None:
                waiter.go()
            else:
                waiter.fail(failure)


class WaitingCall(InFlight):
    """A request in the waiting room, and later where it was submitted."""

    __slots__ = ("_entry", "_models", "_room", "waiter")

    def __init__(
        self, room: WaitingRoom, models: Models, entry: VersionEntry, request: InferRequest, sink: Sink
    ) -> None:
        super().__init__(request, sink)
        self.waiter = _Waiter(self._go, self.fail, sum(len(tensor.data) for tensor in request.inputs))
        self._room = room
        self._models = models
        self._entry = entry

    def cancel(self, advice: bool = False) -> None:
        if self.call is not None:
            self.call.cancel(advice)
        elif self._room.remove(self.waiter):
            asyncio.get_running_loop().call_soon(self.fail, CANCELLED)

    def _go(self) -> None:
        request = self.request
        try:
            current = self._models.resolve(request.model_name, request.model_version)
            if current.decoupled != self._entry.decoupled:  # the caller is prepared for the other kind
                raise not_ready(
                    current.model,
                    current.version,
                    "only its load told whether it is decoupled; send the request again",
                )
            self.call = current.route.submit(request, self.deliver)
        except Exception as error:
            self.fail(error)


def _set(future: "asyncio.Future[Failure | None]", failure: Failure | None) -> None:
    if not future.done():
        future.set_result(failure)
