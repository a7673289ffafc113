"""The two strategies by which an instance executes its sequences."""

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from itertools import islice

from tritonclient.grpc import model_config_pb2 as mc

from deployments.scheduling.dynamic.batch_policy import BatchPolicy, decide_batch
from deployments.scheduling.sequence.sequences import InstanceSlots, NextBatch, Sequence, SequenceRequest


class DirectSlots(InstanceSlots):
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
        self._occupied: dict[int, Sequence] = {}
        self._ready: dict[int, SequenceRequest] = {}

    def occupy(self, sequence: Sequence) -> None:
        super().occupy(sequence)
        self._occupied[sequence.slot] = sequence

    def vacate(self, sequence: Sequence) -> None:
        del self._occupied[sequence.slot]
        super().vacate(sequence)

    def enqueue(self, request: SequenceRequest) -> None:
        self._ready[request.sequence.slot] = request

    def remove(self, request: SequenceRequest) -> None:
        self._ready.pop(request.sequence.slot, None)

    def dispatch(self, requests: Items[SequenceRequest]) -> None:
        for request in requests:
            del self._ready[request.sequence.slot]

    @property
    def queued(self) -> int:
        return sum(len(sequence.queued) for sequence in self._occupied.values())

    @property
    def ahead(self) -> int:
        return 0  # all rows execute together

    def next_batch(self, now_ns: int) -> NextBatch:
        ready = self._ready
        if not ready:
            return NextBatch()
        if len(ready) < self._least and self._max_delay_ns:
            late = min([request.arrival_ns for request in ready.values()]) + self._max_delay_ns
            if now_ns < late:
                return NextBatch(wait_until_ns=late)
        # Rows of one execution agree in shape; those that do not agree with the first come next.
        shapes = next(iter(ready.values())).shapes
        rows = ready if shapes is None else {slot: r for slot, r in ready.items() if r.shapes == shapes}
        if not self._uses_ready:
            return NextBatch([rows[slot] for slot in sorted(rows)], reason="direct")
        return NextBatch([rows.get(slot) for slot in range(max(ready) + 1)], reason="direct")


class OldestSlots(InstanceSlots):
    """The oldest strategy: the next requests of all candidates feed a dynamic batcher, oldest first."""

    def __init__(self, size: int, policy: BatchPolicy) -> None:
        super().__init__(size)
        self._policy = policy
        self._ready: deque[SequenceRequest] = deque()

    def enqueue(self, request: SequenceRequest) -> None:
        self._ready.append(request)

    def remove(self, request: SequenceRequest) -> None:
        if self._ready and self._ready[0] is request:
            self._ready.popleft()
        elif request in self._ready:
            self._ready.remove(request)

    def dispatch(self, requests: Items[SequenceRequest]) -> None:
        for _ in requests:
            self._ready.popleft()

    @property
    def queued(self) -> int:
        return len(self._ready)

    @property
    def ahead(self) -> int:
        return len(self._ready)

    def next_batch(self, now_ns: int) -> NextBatch:
        if not self._ready:
            return NextBatch()
        decision = decide_batch(self._policy, self._ready, now_ns)
        if not decision.size:
            return NextBatch(wait_until_ns=decision.wait_until_ns)
        return NextBatch(list(islice(self._ready, decision.size)), 0, decision.reason)


def slots_factory(config: mc.ModelConfig, uses_ready: bool) -> Callable[[], InstanceSlots]:
    """Return what makes the slots of an instance, by the configured strategy; direct is the default."""
    batching = config.sequence_batching
    rows = max(config.max_batch_size, 1)
    if not batching.HasField("oldest"):
        direct = batching.direct
        delay_ns = direct.max_queue_delay_microseconds * 1000
        return lambda: DirectSlots(rows, direct.minimum_slot_utilization, delay_ns, uses_ready)
    oldest = batching.oldest
    policy = BatchPolicy(
        rows, tuple(sorted(oldest.preferred_batch_size)), oldest.max_queue_delay_microseconds * 1000
    )
    return lambda: OldestSlots(max(oldest.max_candidate_sequences, 1), policy)
