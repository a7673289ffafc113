"""Triton's teaching backend `iterative_sequence`: a request that is executed again until it has counted down.

INPUT INT32[1] = n; OUTPUT INT32[1]. Each execution subtracts 1 from the rest of n and responds with it; the
response at 0 is final. A model that is not decoupled sends that one only. With another scheduler than the
one of iterative sequences, a model loads, and its requests fail when they are to be executed again.
"""

import time
from collections.abc import Sequence
from typing import Final

import numpy as np

from app.core.errors import internal, invalid_arg
from app.core.tensors import InferRequest, InferResponse, SequenceId, Tensor, failed
from backends.array_backend import backend_failure
from backends.base import Backend, Instance, Model, Request
from backends.parameters import integer

RESCHEDULE_DELAY_S: Final = 0.5
"""Pause of an execution after each of its requests, as in Triton's backend."""


class IterativeSequenceBackend(Backend):
    """Counts down. Parameter `execute_delay_ms` delays every execution."""

    @classmethod
    def inspect(cls, model: Model) -> bool:
        return True

    def model_initialize(self, model: Model) -> None:
        model.state = integer(model, "execute_delay_ms")

    def instance_initialize(self, instance: Instance) -> None:
        if instance.kind == "GPU":
            raise invalid_arg("'iterative_sequence' backend only supports CPU instances")
        instance.state = {}

    def sequence_finalize(self, instance: Instance, sequence_id: SequenceId) -> None:
        instance.state.pop(sequence_id, None)

    def instance_execute(self, instance: Instance, requests: Sequence[Request]) -> None:
        if instance.model.state:
            time.sleep(instance.model.state / 1000)
        for request in requests:
            try:
                _turn(instance.model, instance.state, request)
            except Exception as error:
                request.deliver(failed(backend_failure(error), request.infer.id))


def _turn(model: Model, remaining: dict[SequenceId, int], request: Request) -> None:
    infer = request.infer
    known = None if infer.sequence_start else remaining.pop(infer.sequence_id, None)
    left = (_input(infer) if known is None else known) - 1
    final = left <= 0
    if not final:
        remaining[infer.sequence_id] = left
    time.sleep(RESCHEDULE_DELAY_S)
    request.rescheduled = not final
    if final or model.config.model_transaction_policy.decoupled:
        shape = (1, 1) if model.config.max_batch_size else (1,)
        output = Tensor.from_array("OUTPUT", np.full(shape, left, np.int32))
        request.deliver(InferResponse(model.name, model.version_text, (output,), infer.id, final=final))


def _input(infer: InferRequest) -> int:
    for tensor in infer.inputs:
        if tensor.name == "INPUT":
            return int(tensor.array().ravel()[0])
    raise internal("'iterative_sequence' backend expects input INPUT")
