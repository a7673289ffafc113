"""A live sequence, its requests, and the slots of the instance that executes it."""

import asyncio
import heapq
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import NamedTuple

import msgspec

from app.core.errors import invalid_arg
from app.core.tensors import InferRequest, SequenceId
from deployments.execution.queued_request import QueuedRequest
from deployments.scheduling.dynamic.ordering import ResponseOrder
from deployments.scheduling.sequence.controls import Controls
from deployments.scheduling.sequence.state import State, States


class SequenceRequest(QueuedRequest):
    """A request of a sequence.

    Its scheduler sets `sequence`, and `client`: the request as the client sent it. `infer` is the model's.
    """

    __slots__ = ("client", "sequence")
    client: InferRequest
    sequence: "Sequence"

    @property
    def begins(self) -> bool:
        """Whether its execution begins a sequence; one that may be rescheduled is a sequence of its own."""
        return self.client.sequence_start or (self.may_reschedule and not self.dispatch_ns)

    def check(self, model: str, iterative: bool) -> None:
        """Check what every request of a sequence must have.

        Raises:
            InferError: INVALID_ARG without an id, unless sequences are `iterative`; with a batch size other
                than 1.
        """
        if not (iterative or self.infer.sequence_id):
            raise invalid_arg(
                f"inference request to model '{model}' must specify a non-zero or non-empty correlation ID"
            )
        if self.rows != 1:
            raise invalid_arg(
                f"inference request to model '{model}' must specify batch-size 1 due to requirements of"
                " sequence batcher"
            )

    def prepare(self, controls: Controls, states: States, start: bool) -> None:
        """Give the model its control tensors along with the client's inputs."""
        client = self.client
        added = controls.tensors(start, client.sequence_end, self.sequence.id)
        if added:
            self.infer = msgspec.structs.replace(client, inputs=client.inputs + added)


class Sequence:
    """A live sequence: its queued requests, the one that executes, and its slot.

    Attributes:
        closed: nothing may follow: it had END, or ended early.
        slots, slot: the instance's slots it lives in, and which of them; None and -1 in the backlog.
        before: the live sequence of the same id that has to end first; `after` is the reverse.
        state: implicit state for its next request.
        queued: requests that wait, in order.
        running: the request that executes.
        occupied_ns: when it got its slot.
        expiry: the timer that ends a sequence waiting in the backlog.
    """

    __slots__ = (
        "after",
        "before",
        "closed",
        "expiry",
        "id",
        "occupied_ns",
        "queued",
        "running",
        "slot",
        "slots",
        "state",
    )

    def __init__(self, sequence_id: SequenceId, before: "Sequence | None" = None) -> None:
        self.id = sequence_id
        self.before = before
        self.after: Sequence | None = None
        if before is not None:
            before.after = self
        self.closed = False
        self.state: State = {}
        self.queued: deque[SequenceRequest] = deque()
        self.running: SequenceRequest | None = None
        self.slots: InstanceSlots | None = None
        self.slot = -1
        self.occupied_ns = 0
        self.expiry: asyncio.TimerHandle | None = None

    def and_before(self) -> "list[Sequence]":
        """Return it and the live sequences of its id that have to end before it."""
        return [self] if self.before is None else [self, *self.before.and_before()]

    def unlink(self) -> "Sequence | None":
        """Remove it from the sequences of its id; return the one that need not wait any more, if any."""
        before, after = self.before, self.after
        if before is not None:
            before.after = after
        if after is not None:
            after.before = before
        return after if before is None else None

    def cancel_expiry(self) -> None:
        """Stop the timer of the backlog."""
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None


class NextBatch(NamedTuple):
    """The rows of a batch, None for a row without a request.

    Without rows there is nothing to execute before `wait_until_ns`, or (0) before a request arrives.
    """

    rows: Items[SequenceRequest | None] = ()
    wait_until_ns: int = 0
    reason: str = ""


class InstanceSlots(ABC):
    """The slots of one instance. A sequence keeps its slot, the lowest that was free, until it ends.

    Attributes:
        ended: called with the id of each sequence that frees its slot.
        closing: the instance is to be removed: no sequence starts here any more.
        suspended: it cannot execute for now: no sequence starts here until it can.
        order: the order in which responses are delivered, if one is configured.
    """

    ended: Callable[[SequenceId], None]

    def __init__(self, size: int) -> None:
        self.size = size
        self.closing = self.suspended = False
        self.order: ResponseOrder | None = None
        self._vacant = list(range(size))

    @property
    def lowest_vacant(self) -> int | None:
        """The slot that the next sequence gets; None when there is none."""
        return self._vacant[0] if self._vacant and not (self.closing or self.suspended) else None

    @property
    def empty(self) -> bool:
        """Whether no sequence has a slot."""
        return len(self._vacant) == self.size

    def occupy(self, sequence: Sequence) -> None:
        """Give a sequence the lowest free slot."""
        sequence.slot = heapq.heappop(self._vacant)
        sequence.slots = self
        sequence.occupied_ns = time.monotonic_ns()

    def vacate(self, sequence: Sequence) -> None:
        """Free the slot of a sequence."""
        heapq.heappush(self._vacant, sequence.slot)
        self.ended(sequence.id)
        sequence.slots, sequence.slot = None, -1

    @abstractmethod
    def enqueue(self, request: SequenceRequest) -> None:
        """Add a request that became the next of its sequence."""

    @abstractmethod
    def remove(self, request: SequenceRequest) -> None:
        """Remove a request, which need not have been enqueued."""

    @abstractmethod
    def dispatch(self, requests: Items[SequenceRequest]) -> None:
        """Mark the requests of `next_batch` as executing."""

    @property
    @abstractmethod
    def queued(self) -> int:
        """Requests that wait at the instance; with the oldest strategy, those in its dynamic batcher."""

    @property
    @abstractmethod
    def ahead(self) -> int:
        """Requests that execute before one that becomes ready now."""

    @abstractmethod
    def next_batch(self, now_ns: int) -> NextBatch:
        """Decide what to execute next."""
