"""Requests as messages for the compiled library; `read_request` in `shim/request.cpp` reads them."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from app.core.config.model_config import output_specs
from app.core.tensors import InferRequest, Tensor
from backends.base import Model

INLINE_BYTES: Final = 4096
"""Smaller tensors are copied into the message: that costs less than to find out their address."""

START, END = 1, 2
"""TRITONSERVER_RequestFlag."""


class RequestEncoder:
    """Encodes requests of a model. Large inputs are addresses, valid as long as the request lives."""

    def __init__(self, model: Model) -> None:
        self._signature = model.signature
        self._outputs = [spec.name for spec in output_specs(model.config)]
        self._encode = msgspec.msgpack.Encoder().encode

    def batch(self, requests: Sequence[InferRequest]) -> bytes:
        """Encode the requests of a batch."""
        return self._encode([self._values(request) for request in requests])

    def single(self, request: InferRequest) -> bytes:
        """Encode one request."""
        return self._encode(self._values(request))

    def _values(self, request: InferRequest) -> tuple[Any, ...]:
        return (
            request.id,
            request.sequence_id,
            START * request.sequence_start + END * request.sequence_end,
            request.timeout_us,
            bool(request.trace),
            request.parameters,
            [self._input(tensor) for tensor in request.inputs],
            [output.name for output in request.outputs] or self._outputs,
        )

    def _input(self, tensor: Tensor) -> tuple[Any, ...]:
        return tensor_values(tensor, self._signature.model_shape(tensor.name, tensor.shape))


def tensor_values(tensor: Tensor, shape: Sequence[int]) -> tuple[Any, ...]:
    """Return what the library reads of a tensor; of a large one, the address of its data."""
    data = tensor.data
    if len(data) >= INLINE_BYTES:
        data = (address_of(data), len(data))
    return (tensor.name, tensor.datatype, shape, data)


def address_of(data: Any) -> int:
    """Return the address of a buffer that is not empty."""
    address: int = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    return address
