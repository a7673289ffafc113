"""Decodes ModelInferRequest messages into requests. No I/O.

This is the whole reader; what is read in C in its place (`app/native/call_messages.c`) says the same.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from app.core.datatypes import DATATYPES, pack_bytes
from app.core.errors import internal, invalid_arg
from app.core.tensors import Buffer, InferRequest, RegionSlice, RequestedOutput, Tensor
from app.protocol.grpc.message_parts import split_request
from app.protocol.grpc.parameters import decode_parameters, decode_region
from app.protocol.http.json_part import check_entries

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

_SPLIT_FROM: Final = 65536
"""Bytes from which protobuf's own copies cost more than splitting the message in Python."""


def decode_request(data: Buffer, deadline: float = 0.0) -> InferRequest:
    """Decode a serialised ModelInferRequest; tensors of a large one are views of `data`.

    Raises:
        InferError: INTERNAL when `data` is no such message; see `decode_infer`.
    """
    return decode_infer(*parse_infer(data), deadline)


def parse_infer(data: Buffer) -> tuple[pb.ModelInferRequest, Sequence[Buffer]]:
    """Parse a serialised ModelInferRequest.

    Returns:
        The message and its raw input contents; those of a large message are views of `data`, absent from the
        message.

    Raises:
        InferError: INTERNAL when `data` is no such message.
    """
    try:
        split = split_request(data) if len(data) >= _SPLIT_FROM else None
        if split is not None:
            message = pb.ModelInferRequest.FromString(split.header)
            message.id = split.id
            return message, split.raw
        message = pb.ModelInferRequest.FromString(bytes(data))
    except DecodeError:
        raise internal("failed to parse the request message") from None
    return message, message.raw_input_contents


def decode_infer(
    message: pb.ModelInferRequest, raw: Sequence[Buffer] | None = None, deadline: float = 0.0
) -> InferRequest:
    """Decode a request; tensor data are views of `raw` (by default of the message's own raw contents).

    Raises:
        InferError: INVALID_ARG with Triton's text for parameters or tensor data that do not fit the protocol.
            The model's replica checks them against the model.
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
    """Decode inputs; those without a source of their own use the raw contents, in order."""
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
    """Pack InferTensorContents into the wire layout; integers are truncated like a C cast."""
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
