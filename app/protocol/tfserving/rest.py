"""TensorFlow Serving's REST API: JSON to tensors and back, by rows (`instances`) or by columns (`inputs`).

Rules and texts are those of its util/json_tensor.cc. Differences: a number of an output has all its digits,
where TensorFlow Serving writes six, and strings that are not UTF-8 are written as {"b64": ...}.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from app.core.config.model_config import TensorSpec
from app.core.datatypes import DATATYPES, pack_bytes
from app.core.errors import InferError, invalid_arg
from app.core.tensors import InferRequest, InferResponse, Tensor
from app.protocol.http.json_tensors import MAX_RANK
from app.protocol.http.v2 import json_too_large
from app.protocol.tfserving.signature import Signature, client_shape

_B64: Final = "b64"
_BYTES_SUFFIX: Final = "_bytes"
"""End of the names of outputs whose strings are bytes, which are written in base64."""
_ACCEPTED: Final[dict[str, set[type]]] = {"f": {float, int}, "i": {int}, "u": {int}, "b": {bool}}
"""What a kind of tensor accepts of JSON."""


class Predict(NamedTuple):
    """A decoded request; `rows`: its answer is by rows."""

    request: InferRequest
    rows: bool


def decode_predict(
    model: str, version: str, body: bytes | memoryview, signature: Signature, limit: int
) -> Predict:
    """Decode the body of `:predict`.

    Args:
        model, version: of the path.
        body: JSON.
        signature: of the model.
        limit: bytes that the body may have.

    Raises:
        InferError: INVALID_ARG.
    """
    document = read_document(body, signature, limit)
    rows = "instances" in document
    if rows and "inputs" in document:
        raise invalid_arg(
            "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist "
        )
    if not rows and "inputs" not in document:
        raise invalid_arg("Missing 'inputs' or 'instances' key")
    given = _by_rows(document["instances"], signature) if rows else _columns(document["inputs"], signature)
    tensors = tuple(_tensor(signature.inputs[name], value) for name, value in given.items())
    return Predict(InferRequest(model, version, tensors), rows)


def read_document(body: bytes | memoryview, signature: Signature, limit: int) -> dict[str, Any]:
    """Return the JSON of a request, of at most `limit` bytes, that asks for this signature.

    Raises:
        InferError: INVALID_ARG.
    """
    if len(body) > limit:
        raise json_too_large(len(body), limit)
    document = parse(bytes(body))
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise invalid_arg("not formatted correctly. 'signature_name' key must be a string value.")
    signature.require(name)
    return document


def parse(body: bytes) -> dict[str, Any]:
    """Return the object that a body is; raise `InferError` for another one."""
    if not body:
        raise invalid_arg("JSON Parse error: The document is empty")
    try:
        document = json.loads(body)  # accepts NaN and Infinity, as TensorFlow Serving does
    except (ValueError, RecursionError) as error:
        raise invalid_arg(f"JSON Parse error: {error}") from None
    if not isinstance(document, dict):
        raise invalid_arg("JSON Value: is not object")
    return document


def _by_rows(instances: Any, signature: Signature) -> dict[str, list[Any]]:
    if not isinstance(instances, list):
        raise invalid_arg("Expecting 'instances' to be an list/array")
    if not instances:
        raise invalid_arg("No values in 'instances' array")
    inputs = _required(signature)
    if not _is_object(instances[0]):
        if len(inputs) > 1:
            raise invalid_arg(
                "instances is a plain list, but expecting list of objects as multiple input tensors required "
                "as per tensorinfo_map"
            )
        for number, item in enumerate(instances):
            if _is_object(item):
                raise invalid_arg(f"Expecting value/list but got object at item {number} of input list")
        return {_only(signature): instances}
    names = set(instances[0]) & set(signature.inputs)
    for number, item in enumerate(instances):
        if not _is_object(item):
            raise invalid_arg(f"Expecting object but got list at item {number} of input list")
        if set(item) != names or not inputs <= names:
            raise invalid_arg(
                f"Failed to process element: {number} of 'instances' list. JSON object: keys must be equal "
                f"to: {','.join(sorted(inputs))}"
            )
    return {name: [item[name] for item in instances] for name in signature.inputs if name in names}


def _columns(inputs: Any, signature: Signature) -> dict[str, Any]:
    required = _required(signature)
    if not _is_object(inputs):
        if len(required) > 1:
            raise invalid_arg(
                "inputs is a plain value/list, but expecting an object as multiple input tensors required as "
                "per tensorinfo_map"
            )
        return {_only(signature): inputs}
    for name in required - set(inputs):
        raise invalid_arg(f"Missing named input: {name} in 'inputs' object.")
    return {name: value for name, value in inputs.items() if name in signature.inputs}


def _required(signature: Signature) -> set[str]:
    return {name for name, spec in signature.inputs.items() if not spec.optional}


def _only(signature: Signature) -> str:
    names = _required(signature) or set(signature.inputs)
    if not names:
        raise invalid_arg(f"Failed to get input map for signature: {signature.name}")
    return min(names)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and set(value) != {_B64}


def _tensor(spec: TensorSpec, value: Any) -> Tensor:
    shape, leaves = _leaves(spec.name, value)
    pack = _pack_strings if spec.datatype == "BYTES" else _pack_numbers
    return Tensor(spec.name, spec.datatype, client_shape(spec, shape), pack(spec, leaves))


def _leaves(name: str, value: Any) -> tuple[tuple[int, ...], list[Any]]:
    """Return the shape of nested lists, and what is in them, in time linear in its number."""
    shape: list[int] = []
    level = [value]
    while True:
        kinds = set(map(type, level))
        if list not in kinds:
            return tuple(shape), level
        sizes = {len(item) for item in level} if len(kinds) == 1 else set()
        if len(sizes) != 1:
            raise invalid_arg(f"input '{name}': Encountered list at unexpected size")
        if len(shape) == MAX_RANK:
            raise invalid_arg(f"input '{name}': Encountered list at unexpected level: {len(shape)}")
        shape.append(sizes.pop())
        level = list(chain.from_iterable(level))


def _pack_numbers(spec: TensorSpec, leaves: list[Any]) -> bytes:
    dtype = DATATYPES[spec.datatype].dtype
    if spec.datatype == "BF16":
        raise invalid_arg(f"Conversion of JSON Value to type: bfloat16 of input '{spec.name}'")
    try:
        # By their kinds first: what numpy makes of others may take any memory.
        if not set(map(type, leaves)) <= _ACCEPTED[dtype.kind]:
            raise OverflowError
        if dtype.kind != "f":
            return np.array(leaves, dtype).tobytes()
        with np.errstate(over="ignore"):
            return np.array(leaves, np.float64).astype(dtype).tobytes()
    except OverflowError:
        text = f"JSON Value of input '{spec.name}' is not of expected type: {dtype.name}"
        raise invalid_arg(text) from None


def _pack_strings(spec: TensorSpec, leaves: list[Any]) -> bytes:
    return pack_bytes([_string(spec.name, leaf) for leaf in leaves])


def _string(name: str, value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, dict) and set(value) == {_B64} and isinstance(value[_B64], str):
        try:
            return base64.b64decode(value[_B64], altchars=None, validate=True)
        except (binascii.Error, ValueError):
            raise invalid_arg("Unable to base64 decode") from None
    raise invalid_arg(f"JSON Value of input '{name}' is not of expected type: string")


def encode_predictions(response: InferResponse, signature: Signature, rows: bool) -> bytes:
    """Encode a successful response.

    Raises:
        InferError: INVALID_ARG when the outputs cannot be written by rows.
    """
    arrays = {tensor.name: model_array(tensor, signature) for tensor in response.outputs}
    if not arrays:
        raise invalid_arg("Cannot convert empty tensor map to JSON")
    if rows:
        _check_batches(arrays)
    values = {name: _json_values(name, array) for name, array in arrays.items()}
    only = next(iter(values.values())) if len(values) == 1 else None
    answer: dict[str, Any]
    if not rows:
        answer = {"outputs": values if only is None else only}
    elif only is not None:
        answer = {"predictions": only}
    else:
        every = zip(*values.values(), strict=True)
        answer = {"predictions": [dict(zip(values, row, strict=True)) for row in every]}
    finite = all(array.dtype.kind != "f" or np.isfinite(array).all() for array in arrays.values())
    return msgspec.json.encode(answer) if finite else json.dumps(answer).encode()


def model_array(tensor: Tensor, signature: Signature) -> npt.NDArray[Any]:
    """Return an output with the shape that the model behind the configuration gives it."""
    array = tensor.array()
    spec = signature.outputs.get(tensor.name)
    return array if spec is None else array.reshape(spec.backend_shape(array.shape))


def _check_batches(arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    expected = -1
    for name, array in arrays.items():
        if not array.ndim:
            raise invalid_arg(f"Tensor name: {name} has no shape information ")
        if expected not in (-1, len(array)):
            raise _inconsistent(name, len(array), expected)
        expected = len(array)


def _inconsistent(name: str, found: int, expected: int) -> InferError:
    return invalid_arg(f"Tensor name: {name} has inconsistent batch size: {found} expecting: {expected}")


def _json_values(name: str, array: npt.NDArray[Any]) -> Any:
    if array.dtype != object:
        return array.tolist()
    as_bytes = name.endswith(_BYTES_SUFFIX)
    texts = np.empty(array.size, dtype=object)
    texts[:] = [_json_string(value, as_bytes) for value in array.ravel().tolist()]
    return texts.reshape(array.shape).tolist()


def _json_string(value: bytes, as_bytes: bool) -> Any:
    if not as_bytes:
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    return {_B64: base64.b64encode(value).decode()}
