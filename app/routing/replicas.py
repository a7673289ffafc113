"""Which replicas a model application has right now, as Serve tells this process.

Serve calls the request router of a deployment (`app/routing/serve_router.py`) on a thread of its own at
every change; whoever routes subscribes here. The state lives in this module because Serve pickles the
router's module by value, which would give each copy its own state.
"""

import threading
from collections.abc import Callable

import msgspec


class ReplicaAddress(msgspec.Struct, frozen=True):
    """Where a replica listens. `unix` can be reached on `node_id` only, `tcp` from every node."""

    replica_id: str
    node_id: str
    unix: str
    tcp: str


Listener = Callable[[tuple[ReplicaAddress, ...]], None]

_lock = threading.Lock()
_replicas: dict[str, tuple[ReplicaAddress, ...]] = {}
_listeners: dict[str, Listener] = {}


def publish(application: str, replicas: tuple[ReplicaAddress, ...]) -> None:
    """Record an application's replicas and tell its subscriber; called from Serve's router thread."""
    with _lock:
        _replicas[application] = replicas
        listener = _listeners.get(application)
    if listener is not None:
        listener(replicas)


def subscribe(application: str, listener: Listener) -> None:
    """Call `listener` with the replicas known now, and at every change from another thread."""
    with _lock:
        _listeners[application] = listener
        known = _replicas.get(application)
    if known is not None:
        listener(known)


def unsubscribe(application: str) -> None:
    """Forget an application."""
    with _lock:
        _listeners.pop(application, None)
        _replicas.pop(application, None)
