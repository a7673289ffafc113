"""Encodes requests and responses as plain values and buffers, for a `Link`."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from app.core.tensors import Buffer, InferRequest, InferResponse, RequestedOutput, Tensor
from backends.python.worker.framing import Payload, failure_fields, read_failure

_REQUEST: Final = (
    "model_name",
    "model_version",
    "id",
    "parameters",
    "sequence_id",
    "sequence_start",
    "sequence_end",
    "priority",
    "timeout_us",
    "deadline",
    "trace",
)
_RESPONSE: Final = ("model_name", "model_version", "id", "parameters", "final")

Fields = dict[str, Any]


def request_fields(request: InferRequest, buffers: list[Buffer]) -> Fields:
    """Return a request as plain values; append the bytes of its inputs to `buffers`."""
    fields = {name: getattr(request, name) for name in _REQUEST}
    fields["inputs"] = _tensor_fields(request.inputs, buffers)
    fields["outputs"] = [output.name for output in request.outputs]
    fields["chain"] = request.chain
    return fields


def read_request(fields: Fields, payload: Payload) -> InferRequest:
    """Undo `request_fields`."""
    inputs = _tensors(fields.pop("inputs"), payload)
    outputs = tuple(RequestedOutput(name) for name in fields.pop("outputs"))
    return InferRequest(inputs=inputs, outputs=outputs, chain=tuple(fields.pop("chain")), **fields)


def response_fields(response: InferResponse, buffers: list[Buffer]) -> Fields:
    """Return a response as plain values; append the bytes of its outputs to `buffers`."""
    fields = {name: getattr(response, name) for name in _RESPONSE}
    fields["outputs"] = _tensor_fields(response.outputs, buffers)
    if response.failure is not None:
        fields["failure"] = failure_fields(response.failure)
    return fields


def read_response(fields: Fields, payload: Payload) -> InferResponse:
    """Undo `response_fields`."""
    outputs = _tensors(fields.pop("outputs"), payload)
    failure = fields.pop("failure", None)
    return InferResponse(outputs=outputs, failure=failure and read_failure(failure), **fields)


def _tensor_fields(tensors: Iterable[Tensor], buffers: list[Buffer]) -> list[tuple[Any, ...]]:
    heads = []
    for tensor in tensors:
        buffers.append(tensor.data)
        heads.append((tensor.name, tensor.datatype, tensor.shape, len(tensor.data)))
    return heads


def _tensors(heads: Sequence[Any], payload: Payload) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(name, datatype, tuple(shape), payload.read(nbytes)) for name, datatype, shape, nbytes in heads
    )
