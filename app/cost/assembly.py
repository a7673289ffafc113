"""Puts together what accounts for costs in a process that answers clients."""

import os
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from app.core.cost.reports import WORK, ReplicaWork
from app.cost.node import NodeMeter
from app.cost.node_use import NodeWatch, Served, Works
from app.cost.process_tree import ProcessTree
from app.cost.reporter import CostReporter, Send
from app.cost.roles import INGRESS, SERVER
from app.cost.tap import CostTap
from app.cost.turn import Turn
from app.dispatch.router import Router
from app.transport.channel.survey import ask

PERIOD_S: Final = 5.0
"""Time from one report to the next: one to another process costs milliseconds."""
_HERE_PERIOD_S: Final = 1.0
_ANSWER_S: Final = 1.0


class Place(NamedTuple):
    """Where a process is that accounts.

    Attributes:
        name: of the process, and of no other.
        node: its id.
        key: the secret of the server; b"" where no other process measures this node.
        root: the process that has started the server here, where that is not this one.
    """

    name: str
    node: str
    key: bytes = b""
    root: int = 0


def account(place: Place, router: Router, send: Send, tap: CostTap | None) -> CostReporter:
    """Return what reports costs.

    Args:
        place: where this is.
        router: of the requests; its replicas on this node are asked what they do.
        send: sends a report to the manager.
        tap: counts requests of clients; None where they have no tokens.
    """
    shared = not place.key
    watch = NodeWatch(place.node, NodeMeter(_tree(place)), _Local(router).served, _Local(router).ask, shared)
    turn = Turn(place.key) if place.key else None
    period_s = _HERE_PERIOD_S if shared else PERIOD_S
    return CostReporter(
        place.name,
        place.node,
        send,
        lambda: watch if turn is None or turn.taken() else None,
        tap,
        period_s,
    )


def _tree(place: Place) -> ProcessTree:
    """Return the processes of the server: of this one, or of what has started Ray's processes."""
    return ProcessTree(place.root, SERVER) if place.root else ProcessTree(os.getpid(), INGRESS)


class _Local:
    """The replicas of this node."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def served(self) -> Mapping[str, Served]:
        """Return the versions with replicas here."""
        found = {}
        for application, entry in self._router.table.applications.items():
            pool = self._router.pools.find(entry)
            replicas = 0 if pool is None else len(pool.local_channels())
            if replicas:
                found[application] = Served(entry, replicas)
        return found

    async def ask(self, applications: Collection[str]) -> Works:
        """Ask the replicas of applications, all at once."""
        entries = self._router.table.applications
        names = [name for name in applications if name in entries]
        pools = ((name, self._router.pools.find(entries[name])) for name in names)
        channels = {each: name for name, pool in pools if pool is not None for each in pool.local_channels()}
        found: dict[str, list[ReplicaWork]] = {}
        for channel, work in await ask(channels, WORK, ReplicaWork, _ANSWER_S):
            found.setdefault(channels[channel], []).append(work)
        return found
