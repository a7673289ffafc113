"""The pools of channels of this process: one for each application that it calls."""

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, Final

import msgspec

from app.core.errors import unavailable
from app.core.inference import Call
from app.core.system.tasks import Tasks
from app.ray_adapter.serve import replicas
from app.routing.pool import ReplicaPool
from app.routing.sequence_call import SequenceCall
from app.routing.table import VersionEntry
from app.transport.channel.client import ChannelCall
from app.transport.settings import TransportSettings

logger = logging.getLogger(__name__)

_CONNECT_S = 8.0
"""Time to connect to a replica that a table adds: who has asked for the load is answered within 10 s."""
_CLOSE_S: Final = 60.0
_WATCH_RETRY_S = 1.0


class Pools:
    """Opens, connects and closes pools. Runs on the data-plane loop."""

    def __init__(
        self,
        node_id: str,
        key: bytes,
        settings: TransportSettings,
        watch_replicas: Callable[[str, str], Any] | None = None,
    ) -> None:
        """`watch_replicas` has the replicas of a deployment and its application published to this process,
        until the `shutdown` of its result is called; by default by a Serve handle.
        """
        self._node_id = node_id
        self._watch = watch_replicas or _watch_by_handle
        self._key = key
        self.settings = settings
        self._pools: dict[str, ReplicaPool] = {}
        self._handles: dict[str, Any] = {}
        self._closing = Tasks()
        self._watching = Tasks()
        self._control_pools: set[str] = set()
        self._last_control: tuple[str, Any] | None = None

    def find(self, entry: VersionEntry) -> ReplicaPool | None:
        """Return the pool of a version's application; None where nothing is sent to it."""
        return self._pools.get(entry.application)

    def all_of(self, entries: Iterable[VersionEntry]) -> list[ReplicaPool]:
        """Return the pools of those versions that have one."""
        return [self._pools[entry.application] for entry in entries if entry.application in self._pools]

    def get(self, entry: VersionEntry) -> ReplicaPool:
        """Return the pool of a version's application.

        Raises:
            InferError: UNAVAILABLE when the version is not served.
        """
        pool = self.find(entry)
        if pool is None:
            raise unavailable(f"model '{entry.model}' version {entry.version} is not served")
        return pool

    async def open(self, routed: Mapping[str, VersionEntry]) -> None:
        """Open pools for new applications; return when they are connected or a timeout has passed."""
        added = [
            self._open(entry.model, name, self.settings, repeatable=not entry.decoupled)
            for name, entry in routed.items()
            if name not in self._pools
        ]
        if added:
            await asyncio.gather(*(pool.wait_available(_CONNECT_S) for pool in added))

    def retain(self, routed: Container[str]) -> list[str]:
        """Close the pools of all applications but these, once they are idle; return their names."""
        gone = [name for name in self._pools if name not in routed and name not in self._control_pools]
        for name in gone:
            self._close(name)
        return gone

    def is_at(self, entry: VersionEntry, call: Call) -> bool:
        """Return whether a request in flight is at a replica of a version."""
        pool = self.find(entry)
        channel = call.channel if isinstance(call, ChannelCall | SequenceCall) else None
        return pool is not None and channel in pool.channels

    def broadcast_control(self, verb: str, payload: Any) -> None:
        """Make a control call to every replica of every model; see `ReplicaPool.broadcast_control`."""
        if (verb, payload) != self._last_control:
            self._last_control = verb, payload
            for application, pool in self._pools.items():
                if application not in self._control_pools:
                    pool.broadcast_control(verb, payload)

    def open_control_pool(self, deployment: str, application: str) -> ReplicaPool:
        """Open a pool for control calls to a deployment that is not a model, or not in the table."""
        self._control_pools.add(application)
        return self._open(deployment, application, msgspec.structs.replace(self.settings, arena_bytes=0))

    def close_control_pool(self, application: str) -> None:
        """Close such a pool."""
        self._control_pools.discard(application)
        self._close(application)

    async def close(self, grace: float) -> None:
        """Wait for requests in flight, at most `grace` seconds, and close every channel."""
        for name in list(self._pools):
            self._close(name, grace)
        await asyncio.gather(*self._closing)

    def _open(
        self, deployment: str, application: str, settings: TransportSettings, repeatable: bool = False
    ) -> ReplicaPool:
        pool = ReplicaPool(deployment, self._node_id, self._key, settings, repeatable)
        self._pools[application] = pool
        if self._last_control is not None and application not in self._control_pools:
            pool.broadcast_control(*self._last_control)
        replicas.subscribe(application, pool.update_from_thread)
        self._watching.start(self._keep_watching(deployment, application, pool))
        return pool

    async def _keep_watching(self, deployment: str, application: str, pool: ReplicaPool) -> None:
        """Open a Serve handle; retry while the controller is unavailable and the pool is open."""
        loop = asyncio.get_running_loop()
        while self._pools.get(application) is pool:
            try:
                handle = await loop.run_in_executor(None, self._watch, deployment, application)
            except Exception as error:
                logger.error("cannot watch the replicas of '%s': %s", application, error)
                await asyncio.sleep(_WATCH_RETRY_S)
                continue
            if self._pools.get(application) is pool:
                self._handles[application] = handle
            else:  # closed meanwhile
                loop.run_in_executor(None, handle.shutdown)
            return

    def _close(self, name: str, grace: float = _CLOSE_S) -> None:
        pool = self._pools.pop(name)
        replicas.unsubscribe(name, pool.update_from_thread)
        handle = self._handles.pop(name, None)
        if handle is not None:
            asyncio.get_running_loop().run_in_executor(None, handle.shutdown)
        self._closing.start(pool.close(grace))


def _watch_by_handle(deployment: str, application: str) -> Any:
    """Open a handle, which makes Serve report replicas to this process; no request goes through it.

    Blocks on a call to the controller.
    """
    from app.ray_adapter.serve.handles import open_handle  # a process without a cluster has no Ray

    return open_handle(deployment, application)
