"""Composes what answers each version of the current routing table: the one place that knows all kinds."""

import asyncio
from collections.abc import Sequence

from app.cache.response_cache import ResponseCache
from app.core.inference import Call, Sink, Target
from app.core.observability.metrics_config import MetricsConfig
from app.core.tensors import InferRequest
from app.ensemble.runner import NO_DISTRIBUTIONS, EnsembleRunner, EnsembleTarget
from app.rollout.mirror import Mirror
from app.rollout.traffic import RolloutTraffic, SplitTarget
from app.routing.pool import ReplicaPool
from app.routing.pools import Pools
from app.routing.refusals import not_ready
from app.routing.sequences import Sequences
from app.routing.table import ModelState, NotLoaded, RoutingTable, VersionEntry
from app.routing.targets import Absent, PrefixReplicas, Replicas, SequenceReplicas, Tap
from app.routing.waiting_room import Demand, WaitingLimits, WaitingRoom


class Router:
    """The current routing table, and the target of each version in it. Runs on the data-plane loop.

    A new table replaces the old one once its new applications are connected. Requests are sent to the
    `target` of the entry that `resolve` has returned for them.

    Args:
        pools: the channels to replicas.
        demand: asks the manager for a model without a replica; None where all are loaded.
        limits: of the requests that wait for such models.
        cache: for ensembles that enable it.
        reported: selects the distributions that ensembles record.
        mirror: repeats requests at candidates of rollouts; without it none are mirrored.
        tap: sees every request and its answer.

    Attributes:
        pools: these pools.
        table: the current routing table.
        ensembles: runs requests of ensembles here.
        rollouts: chooses between the two versions of models in a rollout.
        waiting: holds requests of versions without a replica until they have one.
    """

    def __init__(
        self,
        pools: Pools,
        *,
        demand: Demand | None = None,
        limits: WaitingLimits | None = None,
        cache: ResponseCache | None = None,
        reported: MetricsConfig = NO_DISTRIBUTIONS,
        mirror: Mirror | None = None,
        tap: Tap | None = None,
    ) -> None:
        self.pools = pools
        self.table = RoutingTable()
        self._table_changed = asyncio.Event()
        self._tap = tap
        self._sequences = Sequences(pools)
        self.ensembles = EnsembleRunner(self, cache, reported, pools.settings)
        self.rollouts = RolloutTraffic(self, mirror)
        self.waiting = None if demand is None else WaitingRoom(self, demand, limits)

    async def apply(self, table: RoutingTable) -> None:
        """Route by `table`, once its new applications are connected or a timeout has passed."""
        await self.pools.open(table.routed)
        table.compose_by(self)
        # From here on requests resolve to pools that are connected; closed pools finish those in flight.
        before, self.table = self.table, table
        self._table_changed.set()
        self.ensembles.retain(table.ready)
        self.rollouts.follow(table)
        self._sequences.follow(before, table, self.pools.retain(table.routed))

    def compose(self, entry: VersionEntry) -> Target:
        """Return what answers the requests of a version."""
        if entry.split is not None:
            return SplitTarget(entry, self, self.rollouts)
        pool = self.pools.find(entry)
        if pool is not None:
            return _kind_of(entry)(entry, self, pool)
        if entry.ensemble and entry.state is ModelState.READY and not self._waits(entry):
            return EnsembleTarget(entry, self, self.ensembles)
        return Absent(entry, self)

    def tapped(self, entry: VersionEntry) -> Target:
        """Return what its callers send the requests of a version to: its route, behind the tap."""
        return entry.route if self._tap is None else self._tap(entry, entry.route)

    def tap_anew(self) -> None:
        """Ask the tap for the targets of all versions again: what it is to see has changed."""
        self.table.compose_by(self)

    def otherwise(self, entry: VersionEntry, request: InferRequest, sink: Sink) -> Call:
        """Send a request whose version cannot be sent one now: see `Routes.otherwise`."""
        if self.table.is_current(entry):
            if self.waiting is not None and entry.idle:
                return self.waiting.hold(entry, request, sink)
            raise not_ready(entry.model, entry.version, self.trouble(entry))
        # It was replaced since it was resolved, by a reload, say: a front may decode in a thread in between.
        current = self.table.resolve(request.model_name, request.model_version)
        if current.decoupled != entry.decoupled:  # the caller is prepared for the other kind of responses
            raise not_ready(entry.model, entry.version)
        return current.route.submit(request, sink)

    def send_in_sequence(self, entries: Sequence[VersionEntry], request: InferRequest, sink: Sink) -> Call:
        """Send a request to the replica of one of these versions that has its sequence: see `Sequences.send`.

        Raises:
            InferError: UNAVAILABLE when no replica is connected.
        """
        call = self._sequences.send(entries, request, sink)
        return self.otherwise(entries[0], request, sink) if call is None else call

    def resolve(self, name: str, version: str = "") -> VersionEntry:
        """Choose the version that answers a request; see `RoutingTable.resolve` for what it raises."""
        return self.table.resolve(name, version)

    async def wait_loaded(self, entry: VersionEntry) -> None:
        """Wait until an idle version is loaded.

        Raises:
            InferError: why it is not.
        """
        if self.waiting is None:
            raise NotLoaded(entry)
        await self.waiting.wait(entry)

    async def wait_for_replica(self, name: str, version: int, timeout: float) -> bool:
        """Wait until a version has a replica that is connected.

        Returns:
            Whether that is so; also True for a version that is not served any more.
        """
        try:
            async with asyncio.timeout(timeout):
                while (found := self._current(name, version)) and found.idle and not found.application:
                    self._table_changed.clear()
                    await self._table_changed.wait()
        except TimeoutError:
            return False
        pool = None if found is None else self.pools.find(found)
        return pool is None or await pool.wait_available(timeout)

    def available(self, entry: VersionEntry) -> bool:
        """Return whether a request to this version would be accepted now."""
        return self._waits(entry) or (entry.state is ModelState.READY and entry.route.available)

    def trouble(self, entry: VersionEntry) -> str:
        """Return why requests to this version cannot be sent now, as far as that is known."""
        pool = self.pools.find(entry)
        current = self._current(entry.name, entry.version)  # its reason may be newer than the entry
        found = (pool.trouble if pool is not None else "", current.reason if current is not None else "")
        return "; ".join(filter(None, found))

    def in_flight(self) -> list[tuple[VersionEntry, int]]:
        """Return the versions with requests in flight from here, and the number of requests."""
        found = ((entry, self.pools.find(entry)) for entry in self.table.ready)
        return [(entry, pool.outstanding) for entry, pool in found if pool is not None and pool.outstanding]

    def pool(self, entry: VersionEntry) -> ReplicaPool:
        """Return the pool that serves a version; raise UNAVAILABLE when it is not served."""
        return self.pools.get(entry)

    def is_at(self, entry: VersionEntry, call: Call) -> bool:
        """Return whether a request in flight is at a replica of a version."""
        return self.pools.is_at(entry, call)

    def losses(self, entry: VersionEntry) -> int:
        """Return how many replicas of a version were lost since it is routed to, other than by a drain."""
        pool = self.pools.find(entry)
        return 0 if pool is None else pool.losses.total()

    async def close(self, grace: float) -> None:
        """Wait for requests in flight, at most `grace` seconds, and close every channel."""
        if self.waiting is not None:
            await self.waiting.close()
        await self.pools.close(grace)

    def _waits(self, entry: VersionEntry) -> bool:
        """Return whether requests of a version wait until it is loaded."""
        return self.waiting is not None and entry.idle

    def _current(self, name: str, version: int) -> VersionEntry | None:
        return self.table.by_name.get(name, {}).get(version)


def _kind_of(entry: VersionEntry) -> type[Replicas]:
    """Return what sends the requests of a version to its replicas."""
    if entry.keeps_sequences:
        return SequenceReplicas
    return PrefixReplicas if entry.text.keeps_prefixes else Replicas
