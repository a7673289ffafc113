"""Publishes the replicas of each model application, as Serve reports them, to a subscriber in this process.

Serve calls the request router of a deployment (`app/routing/serve_router.py`) on a thread of its own at
every change. The state lives in this module because Serve pickles the router's module by value, which would
give each copy its own state.
"""

import threading
from collections.abc import Callable

import msgspec


class ReplicaAddress(msgspec.Struct, frozen=True):
    """Addresses of a replica. `unix` can be reached on `node_id` only, `tcp` from every node."""

    replica_id: str
    node_id: str
    unix: str
    tcp: str


Listener = Callable[[tuple[ReplicaAddress, ...]], None]

_lock = threading.Lock()
_listeners: dict[str, Listener] = {}


def publish(application: str, replicas: tuple[ReplicaAddress, ...]) -> None:
    """Pass an application's replicas to its subscriber, if any; called from Serve's router threads.

    Nothing is stored: Serve also reports replicas of applications that this process no longer routes to.
    """
    with _lock:
        listener = _listeners.get(application)
        if listener is not None:
            listener(replicas)


def subscribe(application: str, listener: Listener) -> None:
    """Call `listener` at every change; subscribe before making the handle whose router publishes.

    It is called from other threads, in the order of the changes, and must neither block nor call this module.
    """
    with _lock:
        _listeners[application] = listener


def unsubscribe(application: str) -> None:
    """Remove an application's listener; it is not called after this returns."""
    with _lock:
        _listeners.pop(application, None)
