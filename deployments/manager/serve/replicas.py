"""The replicas of an application: watches Serve's list of them, and sends updates to all of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from app.core.errors import unavailable
from app.ray_adapter.node import node_id
from app.ray_adapter.serve.handles import connect, new_handle
from app.ray_adapter.serve.replicas import ReplicaAddress, subscribe, unsubscribe
from app.transport.channel.client import Channel
from app.transport.settings import TransportSettings
from deployments.spec import UPDATE, ModelSpec

_LIST_S: Final = 30.0
_UPDATE_S: Final = 600.0


async def update_replicas(spec: ModelSpec) -> None:
    """Make all running replicas change their instances to those of the spec's configuration.

    Raises:
        InferError: a replica refused the change; UNAVAILABLE when one cannot be reached.
    """
    addresses = await _addresses(spec)
    here = node_id()
    outcomes = await asyncio.gather(
        *(_update(spec, address, here) for address in addresses), return_exceptions=True
    )
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


async def _update(spec: ModelSpec, replica: ReplicaAddress, here: str) -> None:
    address = replica.unix if replica.node_id == here and replica.unix else replica.tcp
    try:
        channel = await Channel.connect(
            address, spec.key, TransportSettings(arena_bytes=0, data_plane="python")
        )
    except OSError as error:  # a TimeoutError too
        raise unavailable(f"a replica of model '{spec.name}' cannot be reached: {error}") from error
    try:
        await channel.control(UPDATE, spec.config, _UPDATE_S)
    finally:
        channel.close()


async def _addresses(spec: ModelSpec) -> tuple[ReplicaAddress, ...]:
    try:
        async with asyncio.timeout(_LIST_S), watch_replicas(spec.name, spec.application) as watched:
            return await watched.wait_for(1)
    except TimeoutError:
        raise unavailable(f"model '{spec.name}' has no replica") from None


class ReplicaList:
    """The loaded replicas of an application, as Serve lists them.

    Attributes:
        handle: a Serve handle, whose calls go to any of them.
    """

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._listed: tuple[ReplicaAddress, ...] = ()

    async def wait_for(self, count: int) -> tuple[ReplicaAddress, ...]:
        """Wait for at least `count` replicas and return them; a replica whose load failed is never listed."""
        while len(self._listed) < count:
            self._changed.clear()
            await self._changed.wait()
        return self._listed

    def replace(self, listed: tuple[ReplicaAddress, ...]) -> None:
        """Replace the list; may be called from any thread."""
        self._loop.call_soon_threadsafe(self._set, listed)

    def _set(self, listed: tuple[ReplicaAddress, ...]) -> None:
        self._listed = listed
        self._changed.set()


@asynccontextmanager
async def watch_replicas(deployment: str, application: str) -> AsyncIterator[ReplicaList]:
    """Watch an application's replicas, also before it is deployed; one watch at a time per application."""
    handle = new_handle(deployment, application)
    listed = ReplicaList(handle)
    subscribe(application, listed.replace)
    try:
        await asyncio.to_thread(connect, handle)
        yield listed
    finally:
        unsubscribe(application, listed.replace)
        await asyncio.to_thread(handle.shutdown)
