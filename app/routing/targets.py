"""What answers the requests of a version: `Target`s, composed when a routing table is applied.

These are the ones over replicas. Those of ensembles and of rollouts stand where their requests are executed
(`app/ensemble/runner.py`, `app/rollout/traffic.py`); `app/dispatch/router.py` chooses between them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol

from app.core.inference import Call, Sink, Target
from app.core.prompt_prefixes import prefix_of
from app.core.tensors import InferRequest
from app.routing.pool import ReplicaPool
from app.routing.repeated_call import RepeatedCall, Send
from app.routing.table import RoutingTable, VersionEntry

Tap = Callable[[VersionEntry, Target], Target]
"""Returns what is to answer the requests of a version instead of a target, which it passes them on to."""


def in_turn(*taps: Tap | None) -> Tap:
    """Return taps as one: the last of them sees requests first."""
    some = [tap for tap in taps if tap is not None]

    def tapped(entry: VersionEntry, target: Target) -> Target:
        for tap in some:
            target = tap(entry, target)
        return target

    return tapped


class Routes(Protocol):
    """The router, as the targets that it composes use it."""

    table: RoutingTable

    def otherwise(self, entry: VersionEntry, request: InferRequest, sink: Sink) -> Call:
        """Send a request whose version cannot be sent one now: later, or to what has replaced the version.

        Raises:
            InferError: UNAVAILABLE when neither can be done; what `RoutingTable.resolve` raises.
        """

    def send_in_sequence(self, entries: Sequence[VersionEntry], request: InferRequest, sink: Sink) -> Call:
        """Send a request to the replica of one of these versions that has its sequence."""


@dataclass(slots=True, eq=False)
class Absent:
    """A version without a replica: not ready, idle, or one of an older table."""

    entry: VersionEntry
    routes: Routes
    available: ClassVar[bool] = False

    def submit(self, request: InferRequest, sink: Sink) -> Call:
        """As `Target.submit`."""
        return self.routes.otherwise(self.entry, request, sink)


@dataclass(slots=True, eq=False)
class Replicas:
    """The replicas of a version: a request goes to the one with the fewest in flight."""

    entry: VersionEntry
    routes: Routes
    pool: ReplicaPool

    @property
    def available(self) -> bool:
        """As `Target.available`."""
        return self.pool.available

    def submit(self, request: InferRequest, sink: Sink) -> Call:
        """As `Target.submit`."""
        return self._sent(self.pool.send, request, sink)

    def _sent(self, send: Send, request: InferRequest, sink: Sink) -> Call:
        call = RepeatedCall.start(send, request, sink) if self.pool.repeats else send(request, sink)
        if call is None:
            return self.routes.otherwise(self.entry, request, sink)
        return call


class PrefixReplicas(Replicas):
    """The replicas of a version that keeps the beginnings of prompts."""

    def submit(self, request: InferRequest, sink: Sink) -> Call:
        """As `Target.submit`."""
        pool = self.pool
        prefix = prefix_of(request) if len(pool.channels) > 1 else ""
        return self._sent(partial(pool.send_near, prefix) if prefix else pool.send, request, sink)


class SequenceReplicas(Replicas):
    """The replicas of a version, one of which has the sequence that a request belongs to."""

    def submit(self, request: InferRequest, sink: Sink) -> Call:
        """As `Target.submit`."""
        if request.sequence_id:
            return self.routes.send_in_sequence((self.entry,), request, sink)
        return super().submit(request, sink)
