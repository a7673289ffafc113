"""A request of a sequence, and the stand-in for a slot that has none."""

import asyncio
from collections import deque
from math import prod
from typing import TYPE_CHECKING, ClassVar

import msgspec
from tritonclient.grpc import model_config_pb2 as mc

from app.core.sequences import SequenceId
from app.core.tensors import InferRequest, InferResponse, Tensor
from deployments.scheduling.controls import Controls
from deployments.scheduling.pending import Outbox, Pending, Sink
from deployments.scheduling.state import Kept, States

if TYPE_CHECKING:
    from deployments.scheduling.slots import Lane


class Turn(Pending):
    """A request of a sequence. `client` is what the client sent, `infer` what the model is given.

    `kept` is the state it updates: that of its own sequence since START, so that a late answer can change
    no other.
    """

    __slots__ = ("_kept", "_states", "client", "sequence")

    def __init__(
        self, infer: InferRequest, sink: Sink, outbox: Outbox, rows: int, shapes: tuple[object, ...] | None
    ) -> None:
        super().__init__(infer, sink, outbox, rows, shapes)
        self.client = infer
        self.sequence: Sequence | None = None
        self._states: States | None = None
        self._kept: Kept = {}

    def prepare(self, controls: Controls, states: States, kept: Kept, start: bool) -> None:
        """Give the model its controls and its state along with the client's inputs."""
        client, sequence = self.client, self.sequence
        assert sequence is not None
        self._states, self._kept = states, kept
        self.rescheduled = False
        added = controls.tensors(start, client.sequence_end, sequence.id)
        self.infer = msgspec.structs.replace(
            client,
            inputs=(*client.inputs, *added, *kept.values()),
            sequence_id=sequence.id,
            sequence_start=start,
        )

    def reply(self, response: InferResponse) -> None:
        if self._kept and response.error is None and not self.answered and self._states is not None:
            taken = self._states.take(self._kept, response, self.client.outputs)
            if not (taken.final or taken.outputs) and response.outputs:
                return  # it carried states and nothing else
            response = taken
        super().reply(response)


class IterativeTurn(Turn):
    """A request that is a sequence of its own and may be executed any number of times."""

    __slots__ = ()
    may_reschedule: ClassVar[bool] = True


def turn_kind(config: mc.ModelConfig) -> type[Turn]:
    """The class of a sequence model's requests."""
    return IterativeTurn if config.sequence_batching.iterative_sequence else Turn


class NullTurn(Pending):
    """Fills a row whose slot has no request; what the model answers to it is dropped."""

    __slots__ = ()

    def __init__(self, like: Turn, controls: Controls, states: Kept) -> None:
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

    `closed` is set while its last request had END: nothing but START may follow. `slot` is -1 in the backlog.
    """

    __slots__ = ("closed", "expiry", "id", "kept", "lane", "running", "slot", "turns")

    def __init__(self, sequence_id: SequenceId) -> None:
        self.id = sequence_id
        self.closed = False
        self.kept: Kept = {}
        self.turns: deque[Turn] = deque()
        self.running: Turn | None = None
        self.lane: Lane | None = None
        self.slot = -1
        self.expiry: asyncio.TimerHandle | None = None
