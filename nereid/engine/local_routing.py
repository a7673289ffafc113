"""Pools of the models of one process, and the publication of its routing tables."""

import asyncio
from collections.abc import Mapping

from app.dispatch.router import Router
from app.routing.pool import ReplicaPool
from app.routing.pools import Pools
from app.routing.table import RoutingTable
from app.transport.settings import TransportSettings
from deployments.manager.publishing.routing_publisher import RoutingPublisher
from nereid.engine.local_channel import HERE, LocalPool
from nereid.engine.local_replica import LocalReplica


class LocalPools(Pools):
    """Pools that are models of this process."""

    def __init__(self, replicas: Mapping[str, LocalReplica], settings: TransportSettings) -> None:
        """`replicas` are the loaded versions, by application."""
        super().__init__(HERE, b"", settings)
        self._replicas = replicas

    def _open(
        self, deployment: str, application: str, settings: TransportSettings, repeatable: bool = False
    ) -> ReplicaPool:
        pool = LocalPool(deployment, self._replicas[application].channel)
        self._pools[application] = pool
        return pool

    def _close(self, name: str, grace: float = 60.0) -> None:
        self._closing.start(self._pools.pop(name).close(grace))


class LocalPublisher(RoutingPublisher):
    """Publishes to the router of this process: a published table is in use."""

    def __init__(self, router: Router, namespacing: bool) -> None:
        super().__init__(namespacing)
        self._router = router
        self._applying = asyncio.Lock()

    async def publish(self, content: RoutingTable) -> int:
        number = await super().publish(content)
        async with self._applying:  # the router waits while it applies a table, and a newer one may come
            if self._router.table.number < self.table.number:
                await self._router.apply(self.table)
        return number
