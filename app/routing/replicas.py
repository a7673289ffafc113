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
_listeners: dict[str, Listener] = {}


def publish(application: str, replicas: tuple[ReplicaAddress, ...]) -> None:
    """Tell an application's subscriber, if it has one, its replicas; called from Serve's router threads.

    Nothing is kept: Serve also tells processes and at times when nobody routes to an application any more.
    """
    with _lock:
        listener = _listeners.get(application)
        if listener is not None:
            listener(replicas)


def subscribe(application: str, listener: Listener) -> None:
    """Call `listener` at every change; subscribe before making the handle whose router publishes.

    It is called from other threads, in the order of the changes, and must neither wait nor call back here.
    """
    with _lock:
        _listeners[application] = listener


def unsubscribe(application: str) -> None:
    """Forget an application; its listener is not called after this returns."""
    with _lock:
        _listeners.pop(application, None)
