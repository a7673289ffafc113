"""TensorFlow Serving's gRPC messages to requests, responses to messages."""

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from app.core.config.model_config import TensorSpec
from app.core.datatypes import DATATYPES as TYPES
from app.core.datatypes import pack_bytes
from app.core.errors import invalid_arg
from app.core.tensors import InferRequest, InferResponse, RequestedOutput, Tensor
from app.protocol.http.json_part import check_entries
from app.protocol.http.json_tensors import MAX_ELEMENT_COUNT, MAX_RANK
from app.protocol.tfserving.messages import DATATYPES, NUMBERS, STATES, message_class
from app.protocol.tfserving.rest import model_array
from app.protocol.tfserving.signature import DTYPES, Signature, client_shape

PREDICTION_SERVICE: Final = "tensorflow.serving.PredictionService"
MODEL_SERVICE: Final = "tensorflow.serving.ModelService"
SIGNATURE_DEF: Final = "signature_def"

PredictRequest: Final = message_class("PredictRequest")
GetModelMetadataRequest: Final = message_class("GetModelMetadataRequest")
GetModelStatusRequest: Final = message_class("GetModelStatusRequest")

_FIELDS: Final = {
    "FP16": "half_val", "BF16": "half_val", "FP32": "float_val", "FP64": "double_val", "INT8": "int_val",
    "INT16": "int_val", "INT32": "int_val", "UINT8": "int_val", "UINT16": "int_val", "INT64": "int64_val",
    "BOOL": "bool_val", "UINT32": "uint32_val", "UINT64": "uint64_val", "BYTES": "string_val",
}  # fmt: skip
"""The field of a TensorProto with the values of a data type."""
_PACKED: Final = {"FP32": b"\x2a", "FP64": b"\x32"}
"""Tags of the fields whose values are packed as they lie in memory."""
_MAX_EXPANDED: Final = 16 << 20
"""Bytes of a request's values that are not sent, for which the last one of a tensor stands."""
_MIN_STRING: Final = 64
"""Bytes that a string counts as, at least: it is an object to whoever reads it."""
_MAX_ITEMSIZE: Final = 8
"""Bytes of an element of an array, which takes them even for the sizes beside a 0."""
_UNKNOWN: Final = 2
"""The code of a failed load, in tensorflow.error.Code."""


def decode_predict(message: Any, version: int, signature: Signature, deadline: float) -> InferRequest:
    """Return the request that a PredictRequest stands for.

    Raises:
        InferError: INVALID_ARG for tensors that cannot be read, and inputs that the model lacks or misses.
    """
    signature.require(message.model_spec.signature_name)
    required = {name for name, spec in signature.inputs.items() if not spec.optional}
    if not required <= set(message.inputs) <= set(signature.inputs):
        expected, given = ",".join(sorted(signature.inputs)), ",".join(sorted(message.inputs))
        raise invalid_arg(f"input size does not match signature: expected {{{expected}}}. Got {{{given}}}.")
    check_entries(len(message.inputs), len(message.output_filter), 0)
    limit = _MAX_EXPANDED // max(len(message.inputs), 1)
    tensors = tuple(
        _tensor(spec, message.inputs[name], limit)
        for name, spec in signature.inputs.items()
        if name in message.inputs
    )
    outputs = tuple(RequestedOutput(name) for name in message.output_filter)
    model = message.model_spec.name
    return InferRequest(model, str(version), tensors, outputs=outputs, deadline=deadline)


def _tensor(spec: TensorSpec, message: Any, limit: int) -> Tensor:
    """Return an input, of which `limit` bytes may stand for values that are not there."""
    datatype = DATATYPES.get(message.dtype)
    if datatype != spec.datatype:
        wanted = DTYPES[spec.datatype]
        raise invalid_arg(f"input '{spec.name}' has another data type than {wanted}")
    shape = _shape(spec.name, message.tensor_shape)
    return Tensor(
        spec.name, spec.datatype, client_shape(spec, shape), _data(spec, message, prod(shape), limit)
    )


def _shape(name: str, message: Any) -> tuple[int, ...]:
    """Return a shape that an array can have."""
    sizes = [dim.size for dim in message.dim[: MAX_RANK + 1]]
    taken = prod([max(size, 1) for size in sizes]) * _MAX_ITEMSIZE
    if (
        message.unknown_rank
        or len(sizes) > MAX_RANK
        or min(sizes, default=0) < 0
        or taken > MAX_ELEMENT_COUNT
    ):
        raise invalid_arg(f"input '{name}' has no valid shape")
    return tuple(sizes)


def _data(spec: TensorSpec, message: Any, count: int, limit: int) -> bytes:
    dtype = TYPES[spec.datatype].dtype
    content: bytes = message.tensor_content
    if content and spec.datatype != "BYTES":
        if len(content) != count * dtype.itemsize:
            raise invalid_arg(f"input '{spec.name}' has {len(content)} bytes, which does not fit its shape")
        return content
    values = getattr(message, _FIELDS[spec.datatype])
    missing = count - len(values)
    last = _packed(spec.datatype, values[-1:] or [b"" if spec.datatype == "BYTES" else 0])
    if missing < 0 or missing * max(len(last), _MIN_STRING if spec.datatype == "BYTES" else 0) > limit:
        raise invalid_arg(f"input '{spec.name}' has {len(values)} values, which does not fit its shape")
    return _packed(spec.datatype, values) + last * missing


def _packed(datatype: str, values: Sequence[Any]) -> bytes:
    if datatype == "BYTES":
        return pack_bytes(values)
    dtype = TYPES[datatype].dtype
    if _FIELDS[datatype] == "half_val":
        return np.array(values, np.int64).astype(np.uint16).tobytes()
    return np.array(values).astype(dtype).tobytes()


def encode_predict(response: InferResponse, version: int, signature: Signature) -> Any:
    """Return a PredictResponse; values are in their fields, as TensorFlow Serving sends them by default."""
    message = message_class("PredictResponse")()
    message.model_spec.name = response.model_name
    message.model_spec.version.value = version
    message.model_spec.signature_name = signature.name
    for tensor in response.outputs:
        _fill(message.outputs[tensor.name], tensor.datatype, model_array(tensor, signature))
    return message


def _fill(message: Any, datatype: str, array: npt.NDArray[Any]) -> None:
    message.dtype = NUMBERS[DTYPES[datatype]]
    for size in array.shape:
        message.tensor_shape.dim.add(size=size)
    if datatype in _PACKED:
        data = np.ascontiguousarray(array).tobytes()
        message.MergeFromString(_PACKED[datatype] + _varint(len(data)) + data)
        return
    flat = array.ravel()
    if _FIELDS[datatype] == "half_val":
        flat = flat.view(np.uint16)
    getattr(message, _FIELDS[datatype]).extend(flat.tolist())


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes([*encoded, number])


def encode_metadata(model: str, version: int, signature: Signature) -> Any:
    """Return a GetModelMetadataResponse with the signature."""
    definitions = message_class("SignatureDefMap")()
    definition = definitions.signature_def[signature.name]
    definition.method_name = "tensorflow/serving/predict"
    for infos, specs in ((definition.inputs, signature.inputs), (definition.outputs, signature.outputs)):
        for name, spec in specs.items():
            infos[name].name = f"{name}:0"
            infos[name].dtype = NUMBERS[DTYPES[spec.datatype]]
            for size in spec.reshaped.shape:
                infos[name].tensor_shape.dim.add(size=size)
    message = message_class("GetModelMetadataResponse")()
    message.model_spec.name = model
    message.model_spec.version.value = version
    message.metadata[SIGNATURE_DEF].Pack(definitions)
    return message


def encode_status(rows: Iterable[Mapping[str, Any]]) -> Any:
    """Return a GetModelStatusResponse of what `version_status` says of each version."""
    message = message_class("GetModelStatusResponse")()
    for row in rows:
        made = message.model_version_status.add(version=int(row["version"]), state=STATES[row["state"]])
        made.status.error_message = row["status"]["error_message"]
        made.status.error_code = 0 if row["status"]["error_code"] == "OK" else _UNKNOWN
    return message
