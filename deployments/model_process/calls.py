"""What a model's process asks of the replica that has started it: the manager's methods, and addresses.

That replica is a worker of Ray; the process is none. Both directions go over one channel of control calls:
the process asks, and waits in `next` for what it is told.
"""

import asyncio
from typing import Any, Final

from app.transport.channel.client import Channel
from app.transport.loops.thread import LoopThread
from app.transport.settings import MIB, TransportSettings

FOREVER_S: Final = 10.0 * 365 * 86400
HOST_SETTINGS: Final = TransportSettings(
    arena_bytes=0, max_meta_bytes=1024 * MIB, max_buffered_bytes=1024 * MIB, max_controls=1024
)
"""A load request of a model has its files in a control call."""

METHODS: Final = frozenset(("demand", "index", "load", "receive", "report_outcomes", "unload", "watch"))
"""Those of the manager that calls of models need."""


class HostCluster:
    """The cluster (`deployments.bls.cluster`), by way of the replica that has started this process."""

    def __init__(self, host: Channel, plane: LoopThread, node: str) -> None:
        self._host = host
        self._plane = plane
        self._node = node

    def node_id(self) -> str:
        return self._node

    def open_manager(self, application: str) -> Any:
        return _Manager(self._host)

    def watch_replicas(self, deployment: str, application: str) -> Any:
        self._plane.call(self._host.control("watch", [deployment, application], FOREVER_S))
        return _Watch(self, application)

    def unwatch(self, application: str) -> None:
        """End a watch. Blocks."""
        self._plane.call(self._host.control("unwatch", application, FOREVER_S))


class _Watch:
    def __init__(self, cluster: HostCluster, application: str) -> None:
        self._cluster = cluster
        self._application = application

    def shutdown(self) -> None:
        """End the watch. Blocks."""
        self._cluster.unwatch(self._application)


class _Manager:
    """Stands for the manager's handle."""

    def __init__(self, host: Channel) -> None:
        self._host = host

    def __getattr__(self, name: str) -> "_Method":
        if name not in METHODS:
            raise AttributeError(name)
        return _Method(self._host, name)


class _Method:
    def __init__(self, host: Channel, name: str) -> None:
        self._host = host
        self._name = name

    def remote(self, *arguments: Any) -> "asyncio.Task[Any]":
        """Call the method; the result is awaited, or cancelled."""
        work = self._host.control("manage", [self._name, arguments], FOREVER_S)
        return asyncio.get_running_loop().create_task(work)
