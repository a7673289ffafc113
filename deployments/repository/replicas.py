"""What the manager says to every replica of an application, over their channels."""

import asyncio
from typing import Any, Final

import ray
from ray.serve.handle import DeploymentHandle

from app.core.errors import unavailable
from app.routing.replicas import ReplicaAddress, subscribe, unsubscribe
from app.transport.client import Channel
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
    node_id = str(ray.get_runtime_context().get_node_id())
    outcomes = await asyncio.gather(
        *(_tell(spec, address, node_id) for address in addresses), return_exceptions=True
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
    loop = asyncio.get_running_loop()
    listed: asyncio.Future[tuple[ReplicaAddress, ...]] = loop.create_future()

    def take(found: tuple[ReplicaAddress, ...]) -> None:
        if found and not listed.done():
            listed.set_result(found)

    def hear(found: tuple[ReplicaAddress, ...]) -> None:
        loop.call_soon_threadsafe(take, found)

    subscribe(spec.application, hear)
    handle: Any = DeploymentHandle(spec.name, spec.application)
    try:
        await asyncio.to_thread(handle._init)
        async with asyncio.timeout(_LIST_S):
            return await listed
    except TimeoutError:
        raise unavailable(f"model '{spec.name}' has no replica") from None
    finally:
        unsubscribe(spec.application)
        await asyncio.to_thread(handle.shutdown)
