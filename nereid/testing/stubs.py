"""Functions that answer a model's calls to other models, in a test."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import model_config_pb2 as mc

from app.core.inference import Cancel, Sink, cancel_nothing
from app.core.tensors import InferRequest, InferResponse, Tensor, failed
from app.transport.loops.thread import LoopThread
from backends.base import Request
from deployments.bls.service import Connection
from nereid.engine.calls import LocalCalls

Stub = Callable[[dict[str, npt.NDArray[Any]]], Any]
"""From arrays by input to arrays by output, or to an iterator over such."""


class StubbedCalls(LocalCalls):
    """The server as the models of a test see it: functions in place of some models."""

    def __init__(self, plane: LoopThread, connection: Connection, stubs: Mapping[str, Stub]) -> None:
        super().__init__(plane, connection)
        self._stubs = stubs

    def send(
        self, infer: InferRequest, sink: Sink, decoupled: bool, callers: Sequence[Request] = ()
    ) -> Cancel:
        stub = self._stubs.get(infer.model_name)
        if stub is None:
            return super().send(infer, sink, decoupled, callers)
        _answer(stub, infer, sink)
        return cancel_nothing

    def is_model_ready(self, name: str, version: str) -> bool:
        return name in self._stubs or super().is_model_ready(name, version)

    def find_model(self, name: str, version: str) -> tuple[mc.ModelConfig, int, bool]:
        if name in self._stubs:
            return mc.ModelConfig(name=name), 1, True
        return super().find_model(name, version)


def _answer(stub: Stub, infer: InferRequest, sink: Sink) -> None:
    """Call a function in the thread that calls the model; its exception is the error of the call."""
    try:
        returned = stub({tensor.name: tensor.array() for tensor in infer.inputs})
        if not inspect.isgenerator(returned):
            sink(_response(infer, returned, final=True))
            return
        for outputs in returned:
            sink(_response(infer, outputs, final=False))
        sink(_response(infer, {}, final=True))
    except Exception as error:
        sink(failed(error, infer.id))


def _response(infer: InferRequest, outputs: Any, final: bool) -> InferResponse:
    tensors = [Tensor.from_array(name, np.asarray(value)) for name, value in outputs.items()]
    return InferResponse(infer.model_name, infer.model_version or "1", tuple(tensors), infer.id, final=final)
