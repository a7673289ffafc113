"""The replicas of an application: which Serve lists, and what the manager says to all of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from app.core.errors import unavailable
from app.ray_adapter.handles import connect, new_handle
from app.ray_adapter.node import node_id
from app.ray_adapter.replicas import ReplicaAddress, subscribe, unsubscribe
from app.transport.channel.client import Channel
from app.transport.settings import TransportSettings
from deployments.spec import UPDATE, ModelSpec

_LIST_S: Final = 30.0
_UPDATE_S: Final = 600.0


async def tell_replicas(spec: ModelSpec) -> None:
    """Have all replicas change their instances to what the spec's configuration says.

    Raises:
        InferError: what one of them has against it; UNAVAILABLE when one cannot be reached.
    """
    addresses = await _addresses(spec)
    here = node_id()
    outcomes = await asyncio.gather(
        *(_tell(spec, address, here) for address in addresses), return_exceptions=True
    )
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


async def _tell(spec: ModelSpec, replica: ReplicaAddress, node_id: str) -> None:
    address = replica.unix if replica.node_id == node_id and replica.unix else replica.tcp
    try:
        channel = await Channel.connect(address, spec.key, TransportSettings(arena_bytes=0))
    except OSError as error:  # a TimeoutError too
        raise unavailable(f"a replica of model '{spec.name}' cannot be reached: {error}") from error
    try:
        await channel.control(UPDATE, spec.config, _UPDATE_S)
    finally:
        channel.close()


async def _addresses(spec: ModelSpec) -> tuple[ReplicaAddress, ...]:
    """The replicas that Serve lists now."""
    try:
        async with asyncio.timeout(_LIST_S), listing(spec.name, spec.application) as listed:
            return await listed.reach(1)
    except TimeoutError:
        raise unavailable(f"model '{spec.name}' has no replica") from None


class ReplicaList:
    """The loaded replicas of an application, as Serve lists them; `handle` calls any of them."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._listed: tuple[ReplicaAddress, ...] = ()

    async def reach(self, count: int) -> tuple[ReplicaAddress, ...]:
        """Wait until there are as many; returns them. One whose load failed never is."""
        while len(self._listed) < count:
            self._changed.clear()
            await self._changed.wait()
        return self._listed

    def hear(self, listed: tuple[ReplicaAddress, ...]) -> None:
        """Take a new list; may be called from any thread."""
        self._loop.call_soon_threadsafe(self._take, listed)

    def _take(self, listed: tuple[ReplicaAddress, ...]) -> None:
        self._listed = listed
        self._changed.set()


@asynccontextmanager
async def listing(deployment: str, application: str) -> AsyncIterator[ReplicaList]:
    """Have Serve tell of an application's replicas, also before it is deployed; once at a time for each."""
    handle = new_handle(deployment, application)
    listed = ReplicaList(handle)
    subscribe(application, listed.hear)
    try:
        await asyncio.to_thread(connect, handle)
        yield listed
    finally:
        unsubscribe(application)
        await asyncio.to_thread(handle.shutdown)
