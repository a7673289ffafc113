"""Requests of models that keep state, and the padding of rows without a request."""

from math import prod
from typing import ClassVar

import msgspec
from tritonclient.grpc import model_config_pb2 as mc

from app.core.tensors import InferRequest, InferResponse, Tensor
from deployments.execution.queued_request import QueuedRequest
from deployments.scheduling.sequence.controls import Controls
from deployments.scheduling.sequence.sequences import SequenceRequest
from deployments.scheduling.sequence.state import State, States


class StatefulRequest(SequenceRequest):
    """A request of a model with implicit state.

    `_state` is the state that it updates: that of its own sequence since START, so that a late response
    cannot change another.
    """

    __slots__ = ("_state", "_states")
    _state: State
    _states: States

    def prepare(self, controls: Controls, states: States, start: bool) -> None:
        client, sequence = self.client, self.sequence
        if start:
            sequence.state = states.initial()
        self._states, self._state = states, sequence.state
        added = controls.tensors(start, client.sequence_end, sequence.id)
        inputs = (*client.inputs, *added, *sequence.state.values())
        self.infer = msgspec.structs.replace(client, inputs=inputs)

    def deliver(self, response: InferResponse) -> None:
        if response.failure is None and not self.answered:
            visible = self._states.update(self._state, response, self.client.outputs)
            if not (visible.final or visible.outputs) and response.outputs:
                return  # it carried states and nothing else
            response = visible
        super().deliver(response)


class IterativeRequest(StatefulRequest):
    """A request that is a sequence of its own and may be executed any number of times."""

    __slots__ = ()
    may_reschedule: ClassVar[bool] = True

    def prepare(self, controls: Controls, states: States, start: bool) -> None:
        super().prepare(controls, states, start)
        self.rescheduled = False
        self.infer = msgspec.structs.replace(self.infer, sequence_id=self.sequence.id, sequence_start=start)


def request_class(batching: mc.ModelSequenceBatching) -> type[SequenceRequest]:
    """Return the class of a sequence model's requests."""
    if batching.iterative_sequence:
        return IterativeRequest
    return StatefulRequest if batching.state else SequenceRequest


class PaddingRequest(QueuedRequest):
    """Fills the row of a slot that has no request; its responses are dropped."""

    __slots__ = ()

    def __init__(self, like: SequenceRequest, controls: Controls, state: State) -> None:
        zeros = tuple(map(_zeros, (*like.client.inputs, *state.values())))
        infer = InferRequest(like.client.model_name, "", (*zeros, *controls.null_tensors()))
        super().__init__(infer, like.sink, like._responses, like.rows)

    def deliver(self, response: InferResponse) -> None:
        if response.final:
            # "failed" keeps it out of the statistics of answered requests.
            self.answered = self.failed = True


def _zeros(tensor: Tensor) -> Tensor:
    # An empty string is its length, four bytes.
    size = 4 * prod(tensor.shape) if tensor.datatype == "BYTES" else len(tensor.data)
    return Tensor(tensor.name, tensor.datatype, tensor.shape, bytes(size))
