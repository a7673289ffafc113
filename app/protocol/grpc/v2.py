"""The gRPC codec: `inference.GRPCInferenceService` messages to and from the server's own values. No I/O.

Tensor bytes do not go through protobuf where that costs a copy. Its Python runtime copies a bytes field three
times on the way out (a 600 KB output takes 0.9 ms so, 20 us joined by hand) and twice on the way in. Hence a
response is a serialised header with the raw contents appended, and a large request is cut into its header and
views of its raw contents before protobuf sees it.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from app.core.datatypes import DATATYPES, pack_bytes
from app.core.errors import Failure, internal, invalid_arg
from app.core.tensors import (
    Buffer,
    InferRequest,
    InferResponse,
    RegionSlice,
    RequestedOutput,
    Tensor,
)
from app.protocol.classification import ModelLabels, classify_output
from app.protocol.grpc.parameters import decode_parameters, decode_region, encode_parameters
from app.protocol.grpc.request_splitter import cut_request
from app.protocol.http.request_template import check_entries

MAX_MESSAGE_BYTES: Final = 2**31 - 1

# Below this protobuf's own copies cost less than looking for the raw contents in Python.
_CUT_FROM_BYTES: Final = 65536
_ID_TAG: Final = b"\x1a"
_OUTPUT_TAG: Final = b"\x2a"
_RAW_OUTPUT_TAG: Final = b"\x32"
_STREAM_RESPONSE_TAG: Final = b"\x12"


# Field of InferTensorContents -> the datatypes it may carry; the first names the field in an error.
_CONTENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "bool_contents": ("BOOL",),
    "int_contents": ("INT32", "INT8", "INT16"),
    "int64_contents": ("INT64",),
    "uint_contents": ("UINT32", "UINT8", "UINT16"),
    "uint64_contents": ("UINT64",),
    "fp32_contents": ("FP32",),
    "fp64_contents": ("FP64",),
    "bytes_contents": ("BYTES",),
}


def parse_infer(data: Buffer) -> tuple[pb.ModelInferRequest, Sequence[Buffer]]:
    """Parse a serialised ModelInferRequest.

    Returns:
        The message and its raw input contents; those of a large message are views of `data`, absent from the
        message.

    Raises:
        InferError: INTERNAL when `data` is no such message.
    """
    try:
        cut = cut_request(data) if len(data) >= _CUT_FROM_BYTES else None
        if cut is not None:
            message = pb.ModelInferRequest.FromString(cut.header)
            message.id = cut.id
            return message, cut.raw
        message = pb.ModelInferRequest.FromString(data)
    except DecodeError:
        raise internal("failed to parse the request message") from None
    return message, message.raw_input_contents


def decode_infer(
    message: pb.ModelInferRequest, raw: Sequence[Buffer] | None = None, deadline: float = 0.0
) -> InferRequest:
    """Decode a request; tensor data are views of `raw` (by default of the message's own raw contents).

    Raises:
        InferError: INVALID_ARG with Triton's text for parameters or tensor data that do not fit the protocol.
            Whether the tensors fit the model is for the model's replica to say.
    """
    check_entries(len(message.inputs), len(message.outputs), len(message.parameters))
    fields, parameters = decode_parameters(message.parameters) if message.parameters else ({}, {})
    inputs = _decode_inputs(message, message.raw_input_contents if raw is None else raw)
    outputs = tuple(_decode_output(output) for output in message.outputs)
    if any([type(tensor.data) is RegionSlice for tensor in inputs]) or any(
        [output.region is not None for output in outputs]
    ):
        fields["regions"] = True
    return InferRequest(
        model_name=message.model_name,
        model_version=message.model_version,
        inputs=inputs,
        outputs=outputs,
        id=message.id,
        parameters=parameters,
        deadline=deadline,
        **fields,
    )


def _decode_inputs(message: pb.ModelInferRequest, raw: Sequence[Buffer]) -> tuple[Tensor, ...]:
    """Raw contents are counted over the inputs that have no other source."""
    inputs: list[Tensor] = []
    unread = list(raw)[::-1]
    for tensor in message.inputs:
        region = decode_region(tensor) if tensor.parameters else None
        if region is not None:
            _refuse_contents(tensor, message.model_name)
            data: Buffer | RegionSlice = region
        elif tensor.HasField("contents"):
            data = _typed_data(tensor, message.model_name, bool(raw))
        elif unread:
            data = unread.pop()
        else:
            raise invalid_arg(
                f"unable to find data for input tensor '{tensor.name}' for model '{message.model_name}' "
                "in request."
            )
        inputs.append(Tensor(tensor.name, tensor.datatype, tuple(tensor.shape), data))
    return tuple(inputs)


def _refuse_contents(tensor: Any, model_name: str) -> None:
    if tensor.HasField("contents"):
        raise invalid_arg(
            "unexpected 'content' provided when using shared memory for input tensor "
            f"'{tensor.name}' for model '{model_name}'"
        )


def _typed_data(tensor: Any, model_name: str, has_raw: bool) -> bytes:
    """Pack InferTensorContents into the wire layout; integers are cut to the tensor's width like a C cast."""
    if has_raw:
        raise invalid_arg(
            "contents field must not be specified when using raw_input_contents for "
            f"'{tensor.name}' for model '{model_name}'"
        )
    data = b""
    for field, values in tensor.contents.ListFields():
        if data:
            raise invalid_arg(
                f"unexpected explicit tensor data for input tensor '{tensor.name}' for model '{model_name}', "
                "binary data was already supplied."
            )
        allowed = _CONTENTS[field.name]
        if tensor.datatype not in allowed:
            expected = tensor.datatype if tensor.datatype in DATATYPES else "<invalid>"
            raise invalid_arg(
                f"unexpected explicit tensor data for input tensor '{tensor.name}' for model '{model_name}' "
                f"of type '{allowed[0]}', expected datatype '{expected}'"
            )
        data = _pack(tensor.datatype, values)
    return data


def _pack(datatype: str, values: Sequence[Any]) -> bytes:
    if datatype == "BYTES":
        return pack_bytes(values)
    # The widest type first: numpy refuses to narrow out-of-range Python integers by itself.
    dtype = DATATYPES[datatype].dtype
    wide = np.dtype(np.int64) if dtype.kind in "iu" and dtype.itemsize < 8 else dtype
    return np.fromiter(values, wide, len(values)).astype(dtype, copy=False).tobytes()


def _decode_output(output: Any) -> RequestedOutput:
    if not output.parameters:
        return RequestedOutput(output.name)
    count = _classification(output.parameters)
    if count and "shared_memory_region" in output.parameters:
        raise invalid_arg("output can't set both 'shared_memory_region' and 'classification'")
    return RequestedOutput(output.name, classification=count, region=decode_region(output))


def _classification(parameters: Mapping[str, Any]) -> int:
    if "classification" not in parameters:
        return 0
    parameter = parameters["classification"]
    if parameter.WhichOneof("parameter_choice") != "int64_param":
        raise invalid_arg("invalid value type for 'classification' parameter, expected int64_param")
    if parameter.int64_param <= 0:
        raise invalid_arg("invalid value for 'classification' parameter, expected >= 0")
    return int(parameter.int64_param)


def encode_infer(
    request: InferRequest,
    response: InferResponse,
    model: ModelLabels,
    max_bytes: int = MAX_MESSAGE_BYTES,
) -> list[Buffer]:
    """Serialise a ModelInferResponse, in pieces: the outputs' data are theirs, not copied.

    Outputs keep the backend's order and always use raw_output_contents, one entry each.

    Args:
        request: what was asked, for its id and its classification outputs.
        response: a successful response.
        model: labels of the model that has answered.
        max_bytes: of the message.

    Raises:
        InferError: INVALID_ARG when the message would exceed its limit, UNSUPPORTED or INVALID_ARG from
            classification.
    """
    parts = _infer_parts(request, response, model, stream=False)
    _check_size(sum(map(len, parts)), max_bytes)
    return parts


def encode_stream(
    request: InferRequest,
    response: InferResponse,
    model: ModelLabels,
    max_bytes: int = MAX_MESSAGE_BYTES,
) -> bytes:
    """Serialise a ModelStreamInferResponse, with the parameter `triton_final_response`.

    A failed response becomes an in-band error that names the request.
    """
    if response.failure is not None:
        return encode_stream_failure(request, response.failure, response.final)
    parts = _infer_parts(request, response, model, stream=True)
    size = sum(map(len, parts))
    length = _varint(size)
    _check_size(len(_STREAM_RESPONSE_TAG) + len(length) + size, max_bytes)
    return b"".join((_STREAM_RESPONSE_TAG, length, *parts))


def encode_stream_error(request_id: str, failure: Failure) -> bytes:
    """Serialise the in-band error of a request that reached no model: its id and the text."""
    message = pb.ModelStreamInferResponse(error_message=failure.message)
    message.infer_response.id = request_id
    return bytes(message.SerializeToString())


def encode_stream_failure(request: InferRequest, failure: Failure, final: bool) -> bytes:
    """Serialise the in-band error of a request that reached its model."""
    message = pb.ModelStreamInferResponse(error_message=failure.message)
    message.infer_response.id = request.id
    message.infer_response.model_name = request.model_name
    message.infer_response.model_version = request.model_version
    message.infer_response.parameters["triton_final_response"].bool_param = final
    return bytes(message.SerializeToString())


def _infer_parts(
    request: InferRequest, response: InferResponse, model: ModelLabels, stream: bool
) -> list[Buffer]:
    """A serialised ModelInferResponse in pieces: its fields up to 5 in the first, then each of field 6."""
    outputs = _classified(request, response.outputs, model) if request.outputs else response.outputs
    header = _model_fields(response.model_name, response.model_version)
    if request.id:
        header += _delimited(_ID_TAG, request.id.encode())
    if stream or response.parameters:
        header += _parameter_fields(response, stream)
    for tensor in outputs:
        header += _output_field(tensor.name, tensor.datatype, tensor.shape)
    parts: list[Buffer] = [header]
    for tensor in outputs:
        parts += (_raw_head(len(tensor.data)), tensor.data)
    return parts


# What responses of a model have in common is serialised once.


@lru_cache(1024)
def _model_fields(name: str, version: str) -> bytes:
    return bytes(pb.ModelInferResponse(model_name=name, model_version=version).SerializeToString())


@lru_cache(4096)
def _output_field(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    tensor = pb.ModelInferResponse.InferOutputTensor(name=name, datatype=datatype, shape=shape)
    return _delimited(_OUTPUT_TAG, tensor.SerializeToString())


@lru_cache(1024)
def _raw_head(size: int) -> bytes:
    return _RAW_OUTPUT_TAG + _varint(size)


def _parameter_fields(response: InferResponse, stream: bool) -> bytes:
    message = pb.ModelInferResponse()
    encode_parameters(message.parameters, response.parameters)
    if stream:
        message.parameters["triton_final_response"].bool_param = response.final
    return bytes(message.SerializeToString())


def _delimited(tag: bytes, data: bytes) -> bytes:
    return tag + _varint(len(data)) + data


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise invalid_arg(f"Response has byte size {size} which exceeds gRPC's byte size limit {limit}.")


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _classified(request: InferRequest, outputs: tuple[Tensor, ...], model: ModelLabels) -> tuple[Tensor, ...]:
    """Replace outputs requested as classification by their top classes."""
    counts = {output.name: output.classification for output in request.outputs if output.classification}
    if not counts:
        return outputs
    return tuple(
        classify_output(model, tensor, counts[tensor.name]) if tensor.name in counts else tensor
        for tensor in outputs
    )
