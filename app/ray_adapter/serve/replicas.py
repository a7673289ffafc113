"""The replicas of an application, as Serve reports them to this process.

Serve calls the request router of a deployment (`serve_router.py`) on a thread of its own at every change;
subscribers are called from there. The subscriptions are in this module because Serve pickles the router's
module by value, which would give each copy a state of its own.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Final

import msgspec


class ReplicaAddress(msgspec.Struct, frozen=True):
    """Addresses of a replica. `unix` can be reached on `node_id` only, `tcp` from every node.

    A replica that is a process of its own has addresses of the one that watches it, too.
    """

    replica_id: str
    node_id: str
    unix: str
    tcp: str
    host_unix: str = ""
    host_tcp: str = ""

    def best(self, node_id: str) -> str:
        """Return the address for a process on this node."""
        # Unix sockets are faster than TCP, and let both processes share tensors in memory.
        return self.unix if self.node_id == node_id and self.unix else self.tcp

    def host(self, node_id: str) -> str:
        """Return the address of what watches the replica, for a process on this node; "" without one."""
        return self.host_unix if self.node_id == node_id and self.host_unix else self.host_tcp


_SCHEMES: Final = ("unix", "tcp", "host_unix", "host_tcp")

Listener = Callable[[tuple[ReplicaAddress, ...]], None]

_lock = threading.Lock()
_listeners: dict[str, tuple[Listener, ...]] = {}


def publish(application: str, metadata: Mapping[str, Mapping[str, str]]) -> None:
    """Pass an application's replicas to its subscribers; called from Serve's router threads.

    Nothing is kept: Serve also reports applications to processes that no longer route to them.

    Args:
        application: its name.
        metadata: what each replica returned from `record_replica_metadata`, by replica id; a replica whose
            load failed has no address and is left out.
    """
    replicas = tuple(
        ReplicaAddress(replica, given["node_id"], *(given.get(name, "") for name in _SCHEMES))
        for replica, given in metadata.items()
        if given.get("unix") or given.get("tcp")
    )
    with _lock:
        for listener in _listeners.get(application, ()):
            listener(replicas)


def subscribe(application: str, listener: Listener) -> None:
    """Call `listener` at every change; subscribe before making the handle whose router publishes.

    It is called from other threads, in the order of the changes, and must neither block nor call this module.
    """
    with _lock:
        _listeners[application] = (*_listeners.get(application, ()), listener)


def unsubscribe(application: str, listener: Listener) -> None:
    """Remove a listener of an application; it is not called after this returns."""
    with _lock:
        left = tuple(other for other in _listeners.pop(application, ()) if other != listener)
        if left:
            _listeners[application] = left
