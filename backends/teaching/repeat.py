"""Triton's teaching backend `repeat`: a model that returns its input element by element.

IN INT32[n], DELAY UINT32[n] and WAIT UINT32[1] (milliseconds): n responses OUT = IN[i], IDX = i, the i-th
DELAY[i] after the one before it, then an empty final one. WAIT is the duration of the execution; responses
are sent concurrently, so those of different requests interleave. A model that is not decoupled returns the
first element only.
"""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from app.core.config.model_config import dims_text
from app.core.errors import internal, invalid_arg
from app.core.tensors import InferRequest, InferResponse, Tensor, failed
from backends.base import Backend, Instance, Model, Request
from backends.teaching.timeline import Timeline


class RepeatBackend(Backend):
    """Sends n responses to each request."""

    @classmethod
    def inspect(cls, model: Model) -> bool:
        return True

    def model_initialize(self, model: Model) -> None:
        model.state = Timeline(f"{model.name} repeat")

    def model_finalize(self, model: Model) -> None:
        timeline: Timeline = model.state
        timeline.close()

    def instance_execute(self, instance: Instance, requests: Sequence[Request]) -> None:
        for request in requests:
            try:
                wait = _schedule(instance.model, request)
            except Exception as error:
                request.deliver(failed(error, request.infer.id))
                continue
            time.sleep(wait)


def _schedule(model: Model, request: Request) -> float:
    """Schedule the responses on the model's timeline; return WAIT in seconds."""
    arrays = {tensor.name: tensor.array() for tensor in request.infer.inputs}
    values, delays, wait = (arrays.get(name) for name in ("IN", "DELAY", "WAIT"))
    if values is None or delays is None or wait is None or not wait.size:
        raise internal("'repeat' backend expects inputs IN, DELAY and WAIT")
    if values.shape != delays.shape:
        shapes = f"{dims_text(values.shape)} and {dims_text(delays.shape)}"
        raise invalid_arg(f"expected IN and DELAY shape to match, got {shapes}")
    _Repetition(model, request, values.ravel(), delays.ravel()).start()
    return float(wait.flat[0]) / 1000


class _Repetition:
    """The responses of one request, of which one at a time is scheduled."""

    def __init__(
        self, model: Model, request: Request, values: npt.NDArray[Any], delays: npt.NDArray[Any]
    ) -> None:
        self._model = model
        self._decoupled: bool = model.config.model_transaction_policy.decoupled
        self._timeline: Timeline = model.state
        self._request = request
        self._values = values
        self._delays = delays
        self._due = time.monotonic()

    def start(self) -> None:
        """Schedule the first response."""
        self._request.detached = not self._decoupled  # its only response follows the execution
        self._schedule_next(0)

    def _schedule_next(self, index: int) -> None:
        if index < len(self._values):
            self._due += float(self._delays[index]) / 1000
        self._timeline.at(self._due, partial(self._send, index))

    def _send(self, index: int) -> None:
        infer = self._request.infer
        if index == len(self._values) or self._request.is_cancelled():
            self._request.deliver(InferResponse(id=infer.id, final=True))
            return
        final = not self._decoupled
        self._request.deliver(_response(self._model, infer, self._values[index], index, final))
        if not final:
            self._schedule_next(index + 1)


def _response(model: Model, infer: InferRequest, value: Any, index: int, final: bool) -> InferResponse:
    outputs = [
        Tensor.from_array("OUT", np.array([value], np.int32)),
        Tensor.from_array("IDX", np.array([index], np.uint32)),
    ]
    requested = {output.name for output in infer.outputs} or {"OUT", "IDX"}
    tensors = tuple(output for output in outputs if output.name in requested)
    return InferResponse(model.name, model.version_text, tensors, infer.id, final=final)
