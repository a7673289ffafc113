"""The v2 inference protocol over HTTP: request bodies to `InferRequest`, `InferResponse` to bodies.

A body is a JSON part, then the binary tensors in the order in which the JSON part lists them. The header
`Inference-Header-Content-Length` has the length of the JSON part; without it the whole body is JSON, and with
0 the body is the raw data of the model's only input. No I/O here.
"""

from typing import Any, Final

import msgspec
from tritonclient.grpc import model_config_pb2 as mc

from app.core.datatypes import BY_CONFIG_NAME
from app.core.encoding import to_json
from app.core.errors import InferError, invalid_arg
from app.core.tensors import Buffer, InferRequest, InferResponse, Tensor
from app.protocol.classification import ModelLabels, classify_output
from app.protocol.http.json_part import read_json_part
from app.protocol.http.json_tensors import EncodeData, encode_data

DEFAULT_MAX_INPUT_SIZE: Final = 64 << 20
HEADER_LENGTH: Final = "Inference-Header-Content-Length"
JSON_HEADERS: Final = b"Content-Type: application/json\r\n"
BINARY_HEADERS: Final = b"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n"

_encode: Final = msgspec.json.Encoder().encode


class HttpInfer(msgspec.Struct, frozen=True, gc=False):
    """A decoded request, with the options of its response's encoding.

    `binary_default`: whether outputs it does not list are sent in binary. `needs_json_encoding`: whether any
    output may have to be encoded as JSON or classified, which takes time with its size.
    """

    request: InferRequest
    binary_default: bool
    needs_json_encoding: bool = True


class EncodedResponse(msgspec.Struct, frozen=True, gc=False):
    """A response body in parts, and the header lines that describe it."""

    headers: bytes
    parts: list[Buffer]


def parse_header_length(value: str, content_length: int) -> int:
    """Parse the header `Inference-Header-Content-Length`.

    Args:
        value: the header's value.
        content_length: bytes of the (decompressed) body.

    Raises:
        InferError: INVALID_ARG when it is not a number, or not within the body.
    """
    digits = value.removeprefix("-").removeprefix("+")
    if not (digits.isascii() and digits.isdigit()):
        raise invalid_arg(f"Unable to parse {HEADER_LENGTH}, got: {value}")
    if len(digits.lstrip("0")) > 10 or not -(1 << 31) <= int(value) < 1 << 31:
        raise invalid_arg(
            f"Unable to parse {HEADER_LENGTH}, value is out of range [ -2147483648, 2147483647 ], "
            f"got: {value}"
        )
    length = int(value)
    if not 0 <= length <= content_length:
        raise invalid_arg(f"inference header size should be in range (0, {content_length}), got: {value}")
    return length


def decode_infer(
    model: str,
    version: str,
    body: Buffer,
    header_length: int | None = None,
    max_input_size: int = DEFAULT_MAX_INPUT_SIZE,
) -> HttpInfer:
    """Decode an inference request.

    Tensors given in binary are views of `body`, which must not change while the request lives.

    Args:
        model: name from the path.
        version: from the path; "" lets the version policy choose.
        body: the decompressed body.
        header_length: bytes of the JSON part, not 0 (see `decode_raw`); None for the whole body.
        max_input_size: limit on the bytes of the JSON part, and of each tensor given as JSON.

    Raises:
        InferError: Triton's text and code for an invalid request.
    """
    view = memoryview(body)
    length = len(view) if header_length is None else header_length
    if length > max_input_size:
        raise json_too_large(length, max_input_size)
    if length > len(view):
        raise invalid_arg(f"unexpected size for request JSON, expecting {length - len(view)} more bytes")
    part = read_json_part(view[:length], max_input_size)
    request = part.complete(model, version, view[length:])
    return HttpInfer(request, part.binary_default, part.needs_json_encoding)


def json_too_large(size: int, limit: int) -> InferError:
    """Return the error for JSON of more bytes than `--http-max-input-size`."""
    return _too_large(f"request JSON size of {size} bytes exceeds the maximum allowed input size of", limit)


def _too_large(what: str, limit: int) -> InferError:
    return invalid_arg(f"{what} {limit} bytes. Use --http-max-input-size to increase the limit.")


def decode_raw(
    model: str,
    version: str,
    body: Buffer,
    config: mc.ModelConfig,
    max_input_size: int = DEFAULT_MAX_INPUT_SIZE,
) -> HttpInfer:
    """Decode a raw binary request: the body is the data of the model's only required input.

    Raises:
        InferError: INVALID_ARG when the model has another number of required inputs, or the shape cannot be
            deduced from the size.
    """
    if len(body) > max_input_size:
        raise _too_large(
            f"Raw input has a byte_size ({len(body)} bytes) that exceeds the maximum allowed value of",
            max_input_size,
        )
    required = [entry for entry in config.input if not entry.optional]
    if len(required) != 1:
        raise _raw_error(
            "Raw request must only have 1 input (found 1) to be deduced but got "
            f"{len(config.input)} inputs in '{config.name}' model configuration"
        )
    tensor = _raw_tensor(required[0], body, config.max_batch_size > 0)
    return HttpInfer(InferRequest(model, version, (tensor,)), binary_default=True, needs_json_encoding=False)


def _raw_error(text: str) -> InferError:
    return invalid_arg(f"[request id: <id_unknown>] {text}")


def _raw_tensor(entry: mc.ModelInput, body: Buffer, batched: bool) -> Tensor:
    batch = (1,) if batched else ()
    row = BY_CONFIG_NAME[mc.DataType.Name(entry.data_type)]
    dims = tuple(entry.dims)
    if row.name == "BYTES":
        if dims != (1,):
            raise _raw_error(
                f"For BYTE datatype raw input '{entry.name}', the model must have input shape [1]"
            )
        return Tensor(entry.name, "BYTES", (*batch, 1), len(body).to_bytes(4, "little") + bytes(body))
    if dims.count(-1) > 1:
        raise _raw_error(
            f"The shape of the raw input '{entry.name}' can not be deduced because there are more than one "
            "variable-sized dimension"
        )
    return Tensor(entry.name, row.name, batch + _deduced(dims, len(body) // row.itemsize), memoryview(body))


def _deduced(dims: tuple[int, ...], elements: int) -> tuple[int, ...]:
    known = 1
    for dim in dims:
        known *= 1 if dim == -1 else dim
    return tuple([elements // known if dim == -1 and known else dim for dim in dims])


def encode_infer(
    infer: HttpInfer, response: InferResponse, model: ModelLabels, encode: EncodeData = encode_data
) -> EncodedResponse:
    """Encode a successful response.

    The parts hold the output tensors' own data where it is sent in binary: no copy is made.

    Args:
        infer: the request, as `decode_infer` returned it.
        response: without a failure.
        model: class labels of the model.
        encode: encodes data as JSON.

    Raises:
        InferError: INVALID_ARG for FP16 or BF16 as JSON and for a classification of an unsupported data type;
            INTERNAL when data and shape of an output differ.
    """
    request = infer.request
    outputs: list[dict[str, Any]] = []
    parts: list[Buffer] = [b""]
    listed = {requested.name: requested for requested in request.outputs}
    for tensor in response.outputs:
        binary = infer.binary_default
        requested = listed.get(tensor.name)
        if requested is not None:
            if requested.region is not None:  # the client has the data, and knows its size and place
                outputs.append(_entry(tensor))
                continue
            binary = requested.binary is True
            if requested.classification:
                tensor = classify_output(model, response.model_version, tensor, requested.classification)
        outputs.append(_in_binary(tensor, parts) if binary else _with_data(tensor, encode))
    parts[0] = _encode(_document(request, response, outputs))
    if len(parts) == 1:
        return EncodedResponse(JSON_HEADERS, parts)
    return EncodedResponse(BINARY_HEADERS % len(parts[0]), parts)


def _entry(tensor: Tensor, **more: Any) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape, **more}


def _with_data(tensor: Tensor, encode: EncodeData) -> dict[str, Any]:
    return _entry(tensor, data=msgspec.Raw(encode(tensor)))


def _in_binary(tensor: Tensor, parts: list[Buffer]) -> dict[str, Any]:
    """Return an output's JSON object; its data is appended to `parts`."""
    size = len(tensor.data)
    if size:
        parts.append(tensor.data)
    return _entry(tensor, parameters={"binary_data_size": size})


def _document(
    request: InferRequest, response: InferResponse, outputs: list[dict[str, Any]]
) -> dict[str, Any]:
    document: dict[str, Any] = {}
    identifier = response.id or request.id
    if identifier:
        document["id"] = identifier
    document["model_name"] = response.model_name
    document["model_version"] = response.model_version
    if response.parameters:
        document["parameters"] = response.parameters
    document["outputs"] = outputs
    return document


def encode_error(message: str) -> bytes:
    """Return an error body, `{"error":"..."}`; what cannot be encoded is escaped."""
    return to_json({"error": message})
