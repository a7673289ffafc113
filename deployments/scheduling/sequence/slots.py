"""The sequences of one instance, and which of their requests execute together."""

import heapq
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from itertools import islice
from typing import NamedTuple

from tritonclient.grpc import model_config_pb2 as mc

from app.core.tensors import SequenceId
from deployments.scheduling.dynamic.batch_policy import BatchPolicy, decide_batch
from deployments.scheduling.dynamic.ordering import ResponseOrder
from deployments.scheduling.sequence.requests import Sequence, SequenceRequest


class Choice(NamedTuple):
    """The rows of a batch, None for one without a request.

    Without rows there is nothing to execute before `wait_until_ns`, or (0) before a request comes.
    """

    rows: Items[SequenceRequest | None] = ()
    wait_until_ns: int = 0
    reason: str = ""


class InstanceSlots(ABC):
    """Slots of one instance. A sequence owns its slot, the lowest that was free, for its life.

    `ended` is called with the id of each sequence that gives its slot back.
    """

    ended: Callable[[SequenceId], None]

    def __init__(self, size: int) -> None:
        self.size = size
        self.closing = False
        """Its instance is to go: no sequence starts here any more."""
        self.order: ResponseOrder | None = None
        """In which responses leave, if it matters."""
        self._vacant = list(range(size))

    @property
    def lowest_vacant(self) -> int | None:
        """The slot the next sequence gets; None when there is none for it."""
        return self._vacant[0] if self._vacant and not self.closing else None

    @property
    def empty(self) -> bool:
        """Whether it has no sequence."""
        return len(self._vacant) == self.size

    def occupy(self, sequence: Sequence) -> None:
        """Give a sequence the lowest free slot."""
        sequence.slot = heapq.heappop(self._vacant)
        sequence.lane = self

    def vacate(self, sequence: Sequence) -> None:
        """Take the slot back."""
        heapq.heappush(self._vacant, sequence.slot)
        self.ended(sequence.id)
        sequence.lane, sequence.slot = None, -1

    @abstractmethod
    def offer(self, turn: SequenceRequest) -> None:
        """A request became the next of its sequence."""

    @abstractmethod
    def withdraw(self, turn: SequenceRequest) -> None:
        """It is not wanted any more; it may never have been offered."""

    @abstractmethod
    def take(self, turns: Items[SequenceRequest]) -> None:
        """These, which `choose` chose, execute."""

    @property
    @abstractmethod
    def queued(self) -> int:
        """How many requests wait at the instance; of the oldest strategy, in its dynamic batcher."""

    @abstractmethod
    def choose(self, now_ns: int) -> Choice:
        """What to execute next."""


class DirectLane(InstanceSlots):
    """The direct strategy: row i of a batch is slot i, as models that keep state by row expect.

    Args:
        size: slots.
        utilization: share of the slots that must have a request before `max_delay_ns` is over.
        max_delay_ns: counts from the oldest request.
        uses_ready: slots without a request keep their row, up to the highest slot that has one.
    """

    def __init__(self, size: int, utilization: float, max_delay_ns: int, uses_ready: bool) -> None:
        super().__init__(size)
        self._least = utilization * size
        self._max_delay_ns = max_delay_ns
        self._uses_ready = uses_ready
        self._taken: dict[int, Sequence] = {}
        self._ready: dict[int, SequenceRequest] = {}

    def occupy(self, sequence: Sequence) -> None:
        super().occupy(sequence)
        self._taken[sequence.slot] = sequence

    def vacate(self, sequence: Sequence) -> None:
        del self._taken[sequence.slot]
        super().vacate(sequence)

    def offer(self, turn: SequenceRequest) -> None:
        self._ready[turn.sequence.slot] = turn

    def withdraw(self, turn: SequenceRequest) -> None:
        self._ready.pop(turn.sequence.slot, None)

    def take(self, turns: Items[SequenceRequest]) -> None:
        for turn in turns:
            del self._ready[turn.sequence.slot]

    @property
    def queued(self) -> int:
        return sum(len(sequence.turns) for sequence in self._taken.values())

    def choose(self, now_ns: int) -> Choice:
        ready = self._ready
        if not ready:
            return Choice()
        if len(ready) < self._least and self._max_delay_ns:
            late = min([turn.arrival_ns for turn in ready.values()]) + self._max_delay_ns
            if now_ns < late:
                return Choice(wait_until_ns=late)
        # Rows of one execution agree in shape; those that do not agree with the first come next.
        shapes = next(iter(ready.values())).shapes
        rows = ready if shapes is None else {s: turn for s, turn in ready.items() if turn.shapes == shapes}
        if not self._uses_ready:
            return Choice([rows[slot] for slot in sorted(rows)], reason="direct")
        return Choice([rows.get(slot) for slot in range(max(ready) + 1)], reason="direct")


class OldestLane(InstanceSlots):
    """The oldest strategy: the next requests of all candidates feed a dynamic batcher, oldest first."""

    def __init__(self, size: int, policy: BatchPolicy) -> None:
        super().__init__(size)
        self._policy = policy
        self._ready: deque[SequenceRequest] = deque()

    def offer(self, turn: SequenceRequest) -> None:
        self._ready.append(turn)

    def withdraw(self, turn: SequenceRequest) -> None:
        if self._ready and self._ready[0] is turn:
            self._ready.popleft()
        elif turn in self._ready:
            self._ready.remove(turn)

    def take(self, turns: Items[SequenceRequest]) -> None:
        for _ in turns:
            self._ready.popleft()

    @property
    def queued(self) -> int:
        return len(self._ready)

    def choose(self, now_ns: int) -> Choice:
        if not self._ready:
            return Choice()
        formation = decide_batch(self._policy, self._ready, now_ns)
        if not formation.size:
            return Choice(wait_until_ns=formation.wait_until_ns)
        return Choice(list(islice(self._ready, formation.size)), 0, formation.reason)


def lanes(config: mc.ModelConfig, uses_ready: bool) -> Callable[[], InstanceSlots]:
    """What makes the slots of an instance, by the strategy of the configuration; direct is the default."""
    batching = config.sequence_batching
    rows = max(config.max_batch_size, 1)
    if not batching.HasField("oldest"):
        direct = batching.direct
        delay_ns = direct.max_queue_delay_microseconds * 1000
        return lambda: DirectLane(rows, direct.minimum_slot_utilization, delay_ns, uses_ready)
    oldest = batching.oldest
    policy = BatchPolicy(
        rows, tuple(sorted(oldest.preferred_batch_size)), oldest.max_queue_delay_microseconds * 1000
    )
    return lambda: OldestLane(max(oldest.max_candidate_sequences, 1), policy)
