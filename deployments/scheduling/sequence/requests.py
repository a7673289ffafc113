"""A request of a sequence, and the stand-in for a slot that has none."""

import asyncio
from collections import deque
from math import prod
from typing import TYPE_CHECKING, ClassVar

import msgspec
from tritonclient.grpc import model_config_pb2 as mc

from app.core.tensors import InferRequest, InferResponse, SequenceId, Tensor
from deployments.execution.queued_request import QueuedRequest
from deployments.scheduling.sequence.controls import Controls
from deployments.scheduling.sequence.state import Kept, States

if TYPE_CHECKING:
    from deployments.scheduling.sequence.slots import InstanceSlots


class SequenceRequest(QueuedRequest):
    """A request of a sequence. `client` is what the client sent, `infer` what the model is given.

    Its scheduler sets `client` and `sequence` when it queues the request.
    """

    __slots__ = ("client", "sequence")
    client: InferRequest
    sequence: "Sequence"

    def prepare(self, controls: Controls, states: States, start: bool) -> None:
        """Give the model its controls along with the client's inputs."""
        client = self.client
        added = controls.tensors(start, client.sequence_end, self.sequence.id)
        if added:
            self.infer = msgspec.structs.replace(client, inputs=client.inputs + added)


class StatefulTurn(SequenceRequest):
    """A request of a model with implicit state.

    `_kept` is the state it updates: that of its own sequence since START, so that a late answer can change
    no other.
    """

    __slots__ = ("_kept", "_states")
    _kept: Kept
    _states: States

    def prepare(self, controls: Controls, states: States, start: bool) -> None:
        client, sequence = self.client, self.sequence
        if start:
            sequence.kept = states.initial()
        self._states, self._kept = states, sequence.kept
        added = controls.tensors(start, client.sequence_end, sequence.id)
        self.infer = msgspec.structs.replace(client, inputs=(*client.inputs, *added, *sequence.kept.values()))

    def reply(self, response: InferResponse) -> None:
        if response.failure is None and not self.answered:
            taken = self._states.take(self._kept, response, self.client.outputs)
            if not (taken.final or taken.outputs) and response.outputs:
                return  # it carried states and nothing else
            response = taken
        super().reply(response)


class IterativeTurn(StatefulTurn):
    """A request that is a sequence of its own and may be executed any number of times."""

    __slots__ = ()
    may_reschedule: ClassVar[bool] = True

    def prepare(self, controls: Controls, states: States, start: bool) -> None:
        super().prepare(controls, states, start)
        self.rescheduled = False
        self.infer = msgspec.structs.replace(self.infer, sequence_id=self.sequence.id, sequence_start=start)


def turn_kind(config: mc.ModelConfig) -> type[SequenceRequest]:
    """The class of a sequence model's requests."""
    batching = config.sequence_batching
    if batching.iterative_sequence:
        return IterativeTurn
    return StatefulTurn if batching.state else SequenceRequest


class PaddingRequest(QueuedRequest):
    """Fills a row whose slot has no request; what the model answers to it is dropped."""

    __slots__ = ()

    def __init__(self, like: SequenceRequest, controls: Controls, states: Kept) -> None:
        zeros = tuple(map(_zeros, (*like.client.inputs, *states.values())))
        infer = InferRequest(like.client.model_name, "", (*zeros, *controls.null_tensors()))
        super().__init__(infer, like.sink, like._outbox, like.rows, like.shapes)

    def reply(self, response: InferResponse) -> None:
        if response.final:
            # "failed" keeps it out of the statistics of answered requests.
            self.answered = self.failed = True


def _zeros(tensor: Tensor) -> Tensor:
    # An empty string is its length, four bytes.
    size = 4 * prod(tensor.shape) if tensor.datatype == "BYTES" else len(tensor.data)
    return Tensor(tensor.name, tensor.datatype, tensor.shape, bytes(size))


class Sequence:
    """A live sequence: what waits, what executes, and its place.

    `closed` is set when nothing may follow: it had END, or was ended before its time. `slot` is -1 while it
    has none. `before` is the live sequence of the same id that has to be over first, `after` the reverse.
    """

    __slots__ = ("after", "before", "closed", "expiry", "id", "kept", "lane", "running", "slot", "turns")

    def __init__(self, sequence_id: SequenceId, before: "Sequence | None" = None) -> None:
        self.id = sequence_id
        self.before = before
        self.after: Sequence | None = None
        if before is not None:
            before.after = self
        self.closed = False
        self.kept: Kept = {}
        self.turns: deque[SequenceRequest] = deque()
        self.running: SequenceRequest | None = None
        self.lane: InstanceSlots | None = None
        self.slot = -1
        self.expiry: asyncio.TimerHandle | None = None

    def unlink(self) -> "Sequence | None":
        """Take it out of the sequences of its id; returns the one that no longer has to wait, if any."""
        before, after = self.before, self.after
        if before is not None:
            before.after = after
        if after is not None:
            after.before = before
        return after if before is None else None
