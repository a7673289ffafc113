"""Sends requests of sequences to the replicas that have them, over all replicas and versions of a model."""

import math
from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import Final

from app.core.inference import Call, Sink
from app.core.tensors import InferRequest
from app.routing.pool import ReplicaPool
from app.routing.pools import Pools
from app.routing.sequence_call import Explain, SequenceCall, StaleSequences, missing, out_of_reach, taken_out
from app.routing.table import NO_VERSION, RoutingTable, VersionEntry
from app.transport.memory.client_regions import with_inlined_regions

_REMEMBER_LOSS_S: Final = 60.0


class Sequences:
    """The sequences that this process sends requests of."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._lingering: tuple[VersionEntry, ...] = ()
        self._stale = StaleSequences()
        self._ended: dict[str, tuple[int, float]] = {}
        """Of models the version that was taken from here last, with its sequences, and when."""

    def follow(self, before: RoutingTable, table: RoutingTable, closed: Sequence[str]) -> None:
        """Route by a table, by which these applications of the one before are not routed to any more."""
        self._lingering = table.lingering
        for entry in filter(None, map(before.routed.get, closed)):
            # Whoever unloads a model ends its sequences, as in Triton.
            if entry.keeps_sequences and any(other.name == entry.name for other in table.ready):
                self._ended[entry.name] = entry.version, monotonic()

    def send(self, entries: Sequence[VersionEntry], request: InferRequest, sink: Sink) -> Call | None:
        """Send a request to the replica of one of these versions that has its sequence.

        A sequence starts at the first version that has a replica.

        Returns:
            The call; None where no replica is connected.
        """
        pools = self._pools.all_of(entries)
        channels = [channel for pool in pools for channel in pool.channels_for(request.sequence_id)]
        if channels or not request.sequence_start:  # where sequences only go on, none begins
            lingering = self._pools.all_of(each for each in self._lingering if each.name == entries[0].name)
            channels += [channel for pool in lingering for channel in pool.channels_for(request.sequence_id)]
            pools += lingering
        if not channels:
            return None
        if request.regions and not all(channel.local for channel in channels):
            request, sink = with_inlined_regions(request, sink)
        if request.sequence_start:
            call = channels[0].send(request, sink)
            self._stale.started(channels, request.sequence_id)
            return call
        return SequenceCall(channels, request, sink, self._explain(entries, pools), self._stale)

    def _explain(self, entries: Sequence[VersionEntry], pools: Sequence[ReplicaPool]) -> Explain:
        """Return what tells a request that none of the connected replicas has its sequence."""
        if any(pool.incomplete for pool in pools):  # a sequence may have begun there through another process
            return lambda request, _: out_of_reach(request)
        remembered = max(*(entry.sequence_idle_s for entry in entries), _REMEMBER_LOSS_S)
        version, at = self._ended.get(entries[0].name, (NO_VERSION, -math.inf))
        if monotonic() - at < remembered:
            return lambda request, _: taken_out(request, version)
        return partial(missing, lost=any(pool.lost_within(remembered) for pool in pools))
