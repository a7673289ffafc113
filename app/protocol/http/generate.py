"""The generate extension: one JSON object in, one JSON object out, without shapes or data types.

A key of the request that names an input of the model becomes its tensor, `id` the request's id, and any
other key a parameter; the object `parameters` may hold more of both. The rules are those of
`GenerateRequestClass` in Triton's HTTP server. No I/O here.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import prod
from typing import Any, Final

import msgspec

from app.core.config.model_config import WILDCARD, TensorSpec, dims_text
from app.core.config.request_hints import names_hint
from app.core.errors import Failure, InferError, internal, invalid_arg
from app.core.hints import hinted
from app.core.tensors import Buffer, InferRequest, InferResponse, Parameters, ParameterValue, Tensor
from app.protocol.http import strict_json
from app.protocol.http.json_header import custom_parameter, read_parameter
from app.protocol.http.json_part import MAX_ARRAYS
from app.protocol.http.json_tensors import MAX_RANK, EncodeData, encode_data, flatten, tensor_bytes
from app.protocol.http.strict_json import Members, as_text, error_prefix
from app.protocol.http.v2 import DEFAULT_MAX_INPUT_SIZE, encode_error, json_too_large

_NESTED: Final = "parameters"
_encode: Final = msgspec.json.Encoder(order="sorted").encode


def decode_generate(
    model: str,
    version: str,
    body: Buffer,
    inputs: Iterable[TensorSpec],
    max_input_size: int = DEFAULT_MAX_INPUT_SIZE,
) -> InferRequest:
    """Decode a generate request; the result does not refer to `body`.

    Args:
        model: name from the path.
        version: from the path; "" lets the version policy choose.
        body: a JSON object.
        inputs: the model's inputs.
        max_input_size: limit on the bytes of the body, and of each tensor.

    Raises:
        InferError: Triton's text and code for an invalid request.
    """
    if len(body) > max_input_size:
        raise json_too_large(len(body), max_input_size)
    strict_json.check_count(body, b"[{", MAX_ARRAYS)
    members = strict_json.parse_members(body)
    reader = _Reader(inputs, max_input_size)
    request_id = _request_id(members)
    reader.read_object(members)
    tensors = tuple(reader.tensors.values())
    return InferRequest(model, version, tensors, id=request_id, parameters=reader.parameters)


def _request_id(members: Members) -> str:
    for key, value in members:
        if key == "id":
            with error_prefix("Unable to parse 'id'"):
                return as_text(value)
    return ""


def generate_request(
    model: str,
    values: Mapping[str, Any],
    inputs: Iterable[TensorSpec],
    request_id: str = "",
    max_input_size: int = DEFAULT_MAX_INPUT_SIZE,
) -> InferRequest:
    """Return the request of some values: those that name inputs are tensors, others parameters.

    Raises:
        InferError: as `decode_generate`, for a value that its input or a parameter cannot have.
    """
    reader = _Reader(inputs, max_input_size)
    for name, value in values.items():
        reader.read(name, value)
    tensors = tuple(reader.tensors.values())
    return InferRequest(model, "", tensors, id=request_id, parameters=reader.parameters)


class _Reader:
    """Collects the tensors and parameters of one request, in the order in which it names them."""

    def __init__(self, inputs: Iterable[TensorSpec], max_input_size: int) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.parameters: Parameters = {}
        self._inputs = {spec.name: spec for spec in inputs}
        self._max_input_size = max_input_size

    def read_object(self, members: Members) -> None:
        for key, value in members:
            if key == _NESTED:
                self._read_nested(value)
            elif key != "id" or key in self._inputs:
                self.read(key, value)

    def _read_nested(self, value: Any) -> None:
        if _NESTED in self._inputs:
            raise invalid_arg(f"Keyword '{_NESTED}' for nested schema also given as input tensor name")
        if not isinstance(value, Members):
            raise internal(
                f"Expected JSON object for keyword: '{_NESTED}': attempt to access JSON non-object as object"
            )
        with error_prefix(f"Converting keyword: '{_NESTED}'"):
            for key, entry in value:
                self.read(key, entry)

    def read(self, key: str, value: Any) -> None:
        """Read the value of an input or of a parameter."""
        spec = self._inputs.get(key)
        if spec is None:
            strict_json.check_depth(value)
            self.parameters[as_text(key)] = custom_parameter(self._parameter(key, value))
        elif key in self.tensors:
            raise invalid_arg(f"input '{key}' already exists in request")
        else:
            self.tensors[key] = self._tensor(spec, value if isinstance(value, list) else [value])

    def _parameter(self, key: str, value: Any) -> ParameterValue:
        try:
            return read_parameter(key, value)
        except InferError as error:  # of no type that a parameter has: more likely a misspelt input
            raise InferError(error.code, hinted(error.message, names_hint(key, self._inputs))) from None

    def _tensor(self, spec: TensorSpec, elements: list[Any]) -> Tensor:
        shape = nested_shape(spec, elements)
        if shape is None:
            count = len(elements)
            shape = fitted_shape(spec.name, spec.shape, count)
        else:
            elements = flatten(elements)
            count = len(elements)
        if spec.datatype == "BYTES" and len(flatten(elements)) != count:
            raise internal("Unable to parse 'data': shape does not match true shape of 'data' field")
        data = tensor_bytes(spec.name, spec.datatype, count, elements, self._max_input_size)
        return Tensor(spec.name, spec.datatype, shape, data)


def nested_shape(spec: TensorSpec, elements: list[Any]) -> tuple[int, ...] | None:
    """Return the shape of lists that are nested as an input's dimensions are, otherwise None.

    The batch dimension may be left out. Triton reads flat lists only.
    """
    sizes = [len(elements)]
    level = elements
    while level and all(isinstance(each, list) for each in level):
        lengths = set(map(len, level))
        if len(lengths) > 1 or len(sizes) > MAX_RANK:
            return None
        sizes += lengths
        level = list(chain.from_iterable(level))
    if len(sizes) == 1 or any(isinstance(each, list) for each in level):
        return None
    shape = tuple(sizes)
    if spec.shape != spec.dims and len(shape) == len(spec.dims):
        shape = (1, *shape)
    if len(shape) != len(spec.shape):
        return None
    fits = all(dim in (WILDCARD, size) for size, dim in zip(shape, spec.shape, strict=True))
    return shape if fits else None


def fitted_shape(name: str, shape: Sequence[int], count: int) -> tuple[int, ...]:
    """Fit elements into an input's shape: the last variable dimension takes the rest.

    Args:
        name: input name, for the error text.
        shape: the batch dimension included, -1 for a variable size.
        count: elements given.

    Raises:
        InferError: INVALID_ARG when the elements do not fit.
    """
    left, uneven = count, False
    for dim in shape:
        if dim != WILDCARD:
            left, rest = divmod(left, dim) if dim > 0 else (left, 1)
            uneven = uneven or rest != 0
    fitted: list[int] = []
    for dim in reversed(shape):
        fitted.append(left if dim == WILDCARD else dim)
        left = 1 if dim == WILDCARD else left
    if uneven or left != 1:
        text = f"The schema can not convert input '{name}' to tensor with proper shape"
        given = f"{count} {'value' if count == 1 else 'values'}"
        raise invalid_arg(hinted(text, f"the shape of '{name}' is {dims_text(shape)}, {given} given"))
    return tuple(reversed(fitted))


def encode_generate(request_id: str, response: InferResponse, encode: EncodeData = encode_data) -> bytes:
    """Encode a successful response: sorted keys, a tensor of one element as a scalar, others as flat lists.

    Among equal names the response's own field has precedence over a parameter, and that over an output.

    Raises:
        InferError: INVALID_ARG for FP16 and BF16; INTERNAL when data and shape of an output differ.
    """
    identifier = response.id or request_id
    fields: dict[str, Any] = {"id": identifier} if identifier else {}
    fields |= {"model_name": response.model_name, "model_version": response.model_version}
    for name, value in response.parameters.items():
        fields.setdefault(name, value)
    for tensor in response.outputs:
        if tensor.name not in fields:
            fields[tensor.name] = msgspec.Raw(_value(tensor, encode))
    return _encode(fields)


def _value(tensor: Tensor, encode: EncodeData) -> bytes:
    data = encode(tensor)
    return data[1:-1] if prod(tensor.shape) == 1 else data


def event(document: bytes) -> bytes:
    """Frame a JSON document as a server-sent event; encoded JSON contains no line breaks."""
    return b"data: %b\n\n" % document


def error_event(failure: Failure) -> bytes:
    """Return the event of a failed response."""
    return event(encode_error(failure.message))
