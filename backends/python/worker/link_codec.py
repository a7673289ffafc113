"""Encodes requests and responses as plain values and buffers, for a `Link`."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from app.core.tensors import Buffer, InferRequest, InferResponse, RequestedOutput, Tensor
from backends.python.worker.framing import Payload, failure_fields, read_failure

_REQUEST: Final = (
    "parameters",
    "sequence_id",
    "sequence_start",
    "sequence_end",
    "priority",
    "timeout_us",
    "trace",
)
"""Fields that are left out where they are 0, False or empty, as by default."""
_RESPONSE: Final = ("model_name", "model_version", "parameters", "final")

Fields = dict[str, Any]


def request_fields(request: InferRequest, buffers: list[Buffer]) -> Fields:
    """Return a request as plain values; append the bytes of its inputs to `buffers`."""
    fields = common_request_fields(request)
    fields["about"] |= {"id": request.id, "deadline": request.deadline}
    fields["sizes"] = add_tensors(request.inputs, buffers)
    return fields


def read_sent_request(fields: Fields, payload: Payload) -> InferRequest:
    """Undo `request_fields`."""
    return read_request(fields, fields["sizes"], payload)


def common_request_fields(request: InferRequest) -> Fields:
    """Return a request without what differs from one to the next: id, deadline and bytes."""
    about = {"model_name": request.model_name, "model_version": request.model_version}
    about |= {name: value for name in _REQUEST if (value := getattr(request, name))}
    names = [output.name for output in request.outputs]
    return {"about": about, "inputs": _heads(request.inputs), "outputs": names, "chain": request.chain}


def read_request(fields: Fields, sizes: Sequence[int], payload: Payload, **about: Any) -> InferRequest:
    """Return the request of `common_request_fields`, with what these lack of it."""
    outputs = fields["outputs"]
    return InferRequest(
        inputs=read_tensors(fields["inputs"], sizes, payload),
        outputs=tuple(map(RequestedOutput, outputs)) if outputs else (),
        chain=tuple(fields["chain"]),
        **fields["about"],
        **about,
    )


def response_fields(response: InferResponse, buffers: list[Buffer]) -> Fields:
    """Return a response as plain values; append the bytes of its outputs to `buffers`."""
    fields = common_response_fields(response)
    fields["about"]["id"] = response.id
    fields["sizes"] = add_tensors(response.outputs, buffers)
    return fields


def read_sent_response(fields: Fields, payload: Payload) -> InferResponse:
    """Undo `response_fields`."""
    return read_response(fields, fields["sizes"], payload)


def common_response_fields(response: InferResponse) -> Fields:
    """Return a response without its id and its bytes."""
    fields: Fields = {
        "about": {name: getattr(response, name) for name in _RESPONSE},
        "outputs": _heads(response.outputs),
    }
    if response.failure is not None:
        fields["failure"] = failure_fields(response.failure)
    return fields


def read_response(fields: Fields, sizes: Sequence[int], payload: Payload, **about: Any) -> InferResponse:
    """Return the response of `common_response_fields`, with what these lack of it."""
    outputs = read_tensors(fields["outputs"], sizes, payload)
    failure = fields.get("failure")
    if failure is not None:
        about["failure"] = read_failure(failure)
    return InferResponse(outputs=outputs, **{**about, **fields["about"]})


def _heads(tensors: Iterable[Tensor]) -> list[tuple[Any, ...]]:
    """Return tensors as plain values, without their bytes."""
    return [(tensor.name, tensor.datatype, tensor.shape) for tensor in tensors]


def add_tensors(tensors: Iterable[Tensor], buffers: list[Buffer]) -> list[int]:
    """Append the bytes of tensors to `buffers`; return how many each has."""
    sizes = []
    for tensor in tensors:
        buffers.append(tensor.data)
        sizes.append(len(tensor.data))
    return sizes


def read_tensors(heads: Sequence[Any], sizes: Sequence[int], payload: Payload) -> tuple[Tensor, ...]:
    """Return the tensors of `heads`, with their bytes."""
    tensors = []
    for (name, datatype, shape), nbytes in zip(heads, sizes, strict=True):
        tensors.append(Tensor(name, datatype, tuple(shape), payload.read(nbytes)))
    return tuple(tensors)
