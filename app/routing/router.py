"""Routes requests from a model's name to a replica, by the current routing table."""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import monotonic
from typing import Any, Protocol

import msgspec

from app.core.errors import unavailable
from app.core.inference import Call, Sink
from app.core.tasks import Tasks
from app.core.tensors import InferRequest
from app.ray_adapter import replicas
from app.routing.pool import ReplicaPool
from app.routing.repeated_call import RepeatedCall
from app.routing.sequence_call import (
    Explain,
    SequenceCall,
    StaleSequences,
    missing,
    out_of_reach,
    taken_out,
)
from app.routing.table import NO_VERSION, ModelState, NotLoaded, RoutingTable, VersionEntry, not_ready
from app.routing.waiting_room import WaitingRoom
from app.transport.channel.client import ChannelCall
from app.transport.memory.client_regions import with_inlined_regions
from app.transport.settings import TransportSettings

logger = logging.getLogger(__name__)

_CONNECT_S = 10.0
_CLOSE_S = 60.0
_WATCH_RETRY_S = 1.0
_REMEMBER_LOSS_S = 60.0


class Ensembles(Protocol):
    """Executes the requests of ensembles in this process."""

    def submit(self, entry: VersionEntry, request: InferRequest, sink: Sink) -> Call:
        """Start a request; the sink is never called before this returns."""

    def available(self, entry: VersionEntry) -> bool:
        """Return whether every step could be called now."""

    def retain(self, entries: tuple[VersionEntry, ...]) -> None:
        """Drop the state of all versions but these."""


class Splits(Protocol):
    """Chooses between the two versions of models in a rollout, in this process."""

    def submit(self, entry: VersionEntry, request: InferRequest, sink: Sink) -> Call:
        """Start a request by an entry with a split; the sink is never called before this returns."""

    def follow(self, table: RoutingTable) -> None:
        """Split by this table from now on."""


class Router:
    """The current routing table, and a pool of channels for each application in it.

    Runs on the data-plane loop. A new table replaces the old one once its new applications are connected.
    """

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
        self._settings = settings
        self._pools: dict[str, ReplicaPool] = {}
        self._handles: dict[str, Any] = {}
        self._closing = Tasks()
        self._watching = Tasks()
        self._control_pools: set[str] = set()
        self._stale = StaleSequences()
        self._ended: dict[str, tuple[int, float]] = {}
        """Of models the version that was taken from here last, with its sequences, and when."""
        self.table = RoutingTable()
        self._table_changed = asyncio.Event()
        self.ensembles: Ensembles | None = None
        self.waiting: WaitingRoom | None = None
        """Holds requests of versions without a replica until they have one; None where all are loaded."""
        self.splits: Splits | None = None
        self._last_control: tuple[str, Any] | None = None

    async def apply(self, table: RoutingTable) -> None:
        """Route by `table`, once its new applications are connected or a timeout has passed."""
        added = [
            self._open(entry.model, name, self._settings, repeatable=not entry.decoupled)
            for name, entry in table.routed.items()
            if name not in self._pools
        ]
        if added:
            await asyncio.gather(*(pool.wait_available(_CONNECT_S) for pool in added))
        # From here on requests resolve to pools that are connected; closed pools finish those in flight.
        before, self.table = self.table, table
        self._table_changed.set()
        if self.ensembles is not None:
            self.ensembles.retain(table.ready)
        if self.splits is not None:
            self.splits.follow(table)
        wanted = self._control_pools | table.routed.keys()
        for name in [name for name in self._pools if name not in wanted]:
            self._close(name)
            gone = before.routed.get(name)
            # Whoever unloads a model ends its sequences, as in Triton.
            if gone is not None and gone.keeps_sequences and any(e.name == gone.name for e in table.ready):
                self._ended[gone.name] = gone.version, monotonic()

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

    def available(self, entry: VersionEntry) -> bool:
        """Return whether a request to this version would be accepted now."""
        if entry.idle and self.waiting is not None:
            return True
        pool = self._pools.get(entry.application)
        if pool is None:
            ensembles = self._ensembles(entry)
            return ensembles is not None and ensembles.available(entry)
        return entry.state is ModelState.READY and pool.available

    def trouble(self, entry: VersionEntry) -> str:
        """Return why requests to this version cannot be sent now, as far as that is known."""
        pool = self._pools.get(entry.application)
        found = (pool.trouble if pool is not None else "", self._reason(entry))
        return "; ".join(filter(None, found))

    def _reason(self, entry: VersionEntry) -> str:
        """Return the manager's reason, which may be newer than the entry that a request was resolved to."""
        current = self._current(entry.name, entry.version)
        return current.reason if current is not None else ""

    def _current(self, name: str, version: int) -> VersionEntry | None:
        return self.table.by_name.get(name, {}).get(version)

    def in_flight(self) -> list[tuple[VersionEntry, int]]:
        """Return the versions with requests in flight from here, and the number of requests."""
        entries = (entry for entry in self.table.ready if entry.application in self._pools)
        counts = ((entry, self._pools[entry.application].outstanding) for entry in entries)
        return [(entry, count) for entry, count in counts if count]

    def submit(self, entry: VersionEntry, request: InferRequest, sink: Sink) -> Call:
        """Send a request to the least loaded replica of a version, or to the one that has its sequence.

        An ensemble is run here. An entry with a split stands for two versions.

        Args:
            entry: the version that `resolve` chose for the request.
            request: the request; its model name and version are those that were resolved.
            sink: receives the responses, never before this returns.

        Raises:
            InferError: UNAVAILABLE when no replica is connected; what `resolve` raises when the version was
                unloaded since it was resolved.
        """
        if entry.split is not None:
            return self._submit_split(entry, request, sink)
        pool = self._pools.get(entry.application)
        if pool is None:
            return self._submit_without_pool(entry, request, sink)
        if request.sequence_id and entry.keeps_sequences:
            return self.submit_sequence((entry,), request, sink)
        call = RepeatedCall.start(pool.send, request, sink) if pool.repeats else pool.send(request, sink)
        if call is None:
            if entry.idle and self.waiting is not None:
                return self.waiting.submit(entry, request, sink)
            raise not_ready(entry, self.trouble(entry))
        return call

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
        pool = None if found is None else self._pools.get(found.application)
        return pool is None or await pool.wait_available(timeout)

    def submit_sequence(self, entries: Sequence[VersionEntry], request: InferRequest, sink: Sink) -> Call:
        """Send a request to the replica of one of these versions that has its sequence.

        A sequence starts at the first version that has a replica.

        Raises:
            InferError: UNAVAILABLE when no replica is connected.
        """
        pools = self._pools_of(entries)
        channels = [channel for pool in pools for channel in pool.channels_for(request.sequence_id)]
        if channels or not request.sequence_start:  # where sequences only go on, none begins
            lingering = self._pools_of(each for each in self.table.lingering if each.name == entries[0].name)
            channels += [channel for pool in lingering for channel in pool.channels_for(request.sequence_id)]
            pools += lingering
        if not channels:
            if entries[0].idle and self.waiting is not None:
                return self.waiting.submit(entries[0], request, sink)
            raise not_ready(entries[0], self.trouble(entries[0]))
        if request.regions and not all(channel.local for channel in channels):
            request, sink = with_inlined_regions(request, sink)
        if request.sequence_start:
            call = channels[0].submit(request, sink)
            self._stale.started(channels, request.sequence_id)
            return call
        return SequenceCall(channels, request, sink, self._explain(entries, pools), self._stale)

    def _pools_of(self, entries: Iterable[VersionEntry]) -> list[ReplicaPool]:
        return [self._pools[entry.application] for entry in entries if entry.application in self._pools]

    def _explain(self, entries: Sequence[VersionEntry], pools: Sequence[ReplicaPool]) -> Explain:
        """Return what tells a request that none of the connected replicas has its sequence."""
        if any(pool.incomplete for pool in pools):  # a sequence may have begun there through another process
            return lambda request, _: out_of_reach(request)
        remembered = max(*(entry.sequence_idle_s for entry in entries), _REMEMBER_LOSS_S)
        version, at = self._ended.get(entries[0].name, (NO_VERSION, -math.inf))
        if monotonic() - at < remembered:
            return lambda request, _: taken_out(request, version)
        return partial(missing, lost=any(pool.lost_within(remembered) for pool in pools))

    def is_at(self, entry: VersionEntry, call: Call) -> bool:
        """Return whether a request in flight is at a replica of a version."""
        pool = self._pools.get(entry.application)
        channel = call.channel if isinstance(call, ChannelCall | SequenceCall) else None
        return pool is not None and channel in pool.channels

    def losses(self, entry: VersionEntry) -> int:
        """Return how many replicas of a version were lost since it is routed to, other than by a drain."""
        pool = self._pools.get(entry.application)
        return 0 if pool is None else pool.losses.total()

    def broadcast_control(self, verb: str, payload: Any) -> None:
        """Make a control call to every replica of every model; see `ReplicaPool.broadcast_control`."""
        if (verb, payload) != self._last_control:
            self._last_control = verb, payload
            for application, pool in self._pools.items():
                if application not in self._control_pools:
                    pool.broadcast_control(verb, payload)

    def pool(self, entry: VersionEntry) -> ReplicaPool:
        """Return the pool that serves a version.

        Raises:
            InferError: UNAVAILABLE when the version is not served.
        """
        pool = self._pools.get(entry.application)
        if pool is None:
            raise unavailable(f"model '{entry.model}' version {entry.version} is not served")
        return pool

    def open_control_pool(self, deployment: str, application: str) -> ReplicaPool:
        """Open a pool for control calls to a deployment that is not a model, nor in the table."""
        self._control_pools.add(application)
        return self._open(deployment, application, msgspec.structs.replace(self._settings, arena_bytes=0))

    def close_control_pool(self, application: str) -> None:
        """Close such a pool."""
        self._control_pools.discard(application)
        self._close(application)

    async def close(self, grace: float) -> None:
        """Wait for requests in flight, at most `grace` seconds, and close every channel."""
        if self.waiting is not None:
            await self.waiting.close()
        for name in list(self._pools):
            self._close(name, grace)
        await asyncio.gather(*self._closing)

    def _ensembles(self, entry: VersionEntry) -> Ensembles | None:
        """Return what runs a version; None for a model that is not an ensemble, or not ready."""
        return self.ensembles if entry.state is ModelState.READY and entry.ensemble else None

    def _submit_split(self, entry: VersionEntry, request: InferRequest, sink: Sink) -> Call:
        if self.splits is not None:
            return self.splits.submit(entry, request, sink)
        return self.submit(self.resolve(entry.name, str(entry.version)), request, sink)

    def _submit_without_pool(self, entry: VersionEntry, request: InferRequest, sink: Sink) -> Call:
        """Run an ensemble, have the request of an idle version wait, or send to what replaced the version.

        It may have been replaced since it was resolved (by a reload, say).
        """
        if self.table.is_current(entry):
            if entry.idle and self.waiting is not None:
                return self.waiting.submit(entry, request, sink)
            return self._submit_ensemble(entry, request, sink)
        # A front may decode in a thread after it has resolved: the pool can be closed in between.
        current = self.table.resolve(request.model_name, request.model_version)
        if current.decoupled != entry.decoupled:  # the caller is prepared for the other kind of responses
            raise not_ready(entry)
        return self.submit(current, request, sink)

    def _submit_ensemble(self, entry: VersionEntry, request: InferRequest, sink: Sink) -> Call:
        ensembles = self._ensembles(entry)
        if ensembles is None:
            raise not_ready(entry)
        if request.regions:  # the steps' replicas may be on other nodes
            request, sink = with_inlined_regions(request, sink)
        return ensembles.submit(entry, request, sink)

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
                handle = await loop.run_in_executor(None, self._watch_replicas, deployment, application)
            except Exception as error:
                logger.error("cannot watch the replicas of '%s': %s", application, error)
                await asyncio.sleep(_WATCH_RETRY_S)
                continue
            if self._pools.get(application) is pool:
                self._handles[application] = handle
            else:  # closed meanwhile
                loop.run_in_executor(None, handle.shutdown)
            return

    def _watch_replicas(self, deployment: str, application: str) -> Any:
        return self._watch(deployment, application)

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
    from app.ray_adapter.handles import open_handle  # a process without a cluster has no Ray

    return open_handle(deployment, application)
