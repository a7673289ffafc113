"""Tensor data as JSON: both directions between JSON values and wire bytes.

Reading follows Triton: any nesting is ignored, integers are cut to their type as a C cast does, a wrong JSON
type is an INTERNAL error. Writing widens FP32 to double before printing, so 0.1f reads 0.10000000149011612.
"""

import json
import math
from decimal import Decimal
from itertools import chain
from math import prod
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from app.core.datatypes import DATATYPES, pack_bytes, unpack_bytes
from app.core.errors import InferError, internal, invalid_arg
from app.core.tensors import Buffer, Tensor
from app.protocol.http.strict_json import MAX_DEPTH, explaining, syntax_error, too_deep

MAX_ELEMENT_COUNT: Final = (1 << 63) - 1
MAX_RANK: Final = 64  # numpy's
_EXPONENT_FROM: Final = 1e16  # where msgspec begins to print exponents
_LONGEST: Final = 1e21  # where rapidjson does

_BINARY_ONLY: Final = frozenset(("FP16", "BF16"))
_NUMBERS: Final = frozenset((int, float))
_WIDE: Final = {"u": np.uint64, "i": np.int64, "f": np.float64}
_REFUSALS: Final = {
    "b": "attempt to access JSON non-boolean as boolean",
    "u": "attempt to access JSON non-unsigned-integer as unsigned-integer",
    "i": "attempt to access JSON non-signed-integer as signed-integer",
    "f": "attempt to access JSON non-number as double",
}
_ALLOWED: Final = {"b": frozenset((bool,)), "u": frozenset((int,)), "i": frozenset((int,)), "f": _NUMBERS}


def check_shape(name: str, shape: tuple[int, ...]) -> int:
    """Return the element count of a shape given by a client.

    Raises:
        InferError: INVALID_ARG when a dimension or the count does not fit a signed 64-bit integer, or when
            there are more dimensions than an array can have.
    """
    if len(shape) > MAX_RANK:
        raise invalid_arg(
            f"invalid shape for input '{name}': {len(shape)} dimensions exceed the maximum of {MAX_RANK}"
        )
    if any(dim > MAX_ELEMENT_COUNT for dim in shape):
        raise invalid_arg(
            f"invalid shape for input '{name}': shape {_shown(shape)} contains one or more invalid dimensions"
        )
    # An empty shape has no elements to Triton, not one: whether a model takes it is not for the codec to say.
    count = prod(shape) if shape else 0
    if count > MAX_ELEMENT_COUNT:
        raise invalid_arg(
            f"invalid shape for input '{name}': shape {_shown(shape)} causes total element count to exceed "
            f"maximum size of {MAX_ELEMENT_COUNT}"
        )
    return count


def _shown(shape: tuple[int, ...]) -> str:
    """Print a shape as the signed 64-bit integers Triton holds it in."""
    return "[" + ",".join(str((dim + (1 << 63)) % (1 << 64) - (1 << 63)) for dim in shape) + "]"


def tensor_bytes(name: str, datatype: str, count: int, data: Any, max_input_size: int) -> bytes:
    """Convert a decoded JSON `data` value to wire bytes.

    Args:
        name: input name, for the error texts.
        datatype: v2 data type name.
        count: elements the shape asks for.
        data: the JSON value, of any nesting.
        max_input_size: bytes a tensor given as JSON may take.

    Raises:
        InferError: INVALID_ARG for FP16, BF16, an oversized tensor or too deep a nesting; INTERNAL for
            values of another JSON type or another number of them.
    """
    if count == 0:
        return b""
    if not isinstance(data, list):
        raise internal("Unable to parse 'data': attempt to access JSON non-array as array")
    if datatype == "BYTES":
        return _string_bytes(name, data, max_input_size)
    itemsize = DATATYPES[datatype].itemsize
    size = count * itemsize
    if size > MAX_ELEMENT_COUNT:
        raise invalid_arg(
            f"byte size overflow for input '{name}': {count} elements of {itemsize} bytes "
            f"exceed the maximum size of {MAX_ELEMENT_COUNT}"
        )
    _check_size(name, size, max_input_size)
    if datatype in _BINARY_ONLY:
        raise invalid_arg(
            f"receiving {datatype} data via JSON is not supported. "
            f"Please use the binary data format for input {name}"
        )
    flat = flatten(data)
    with explaining("Unable to parse 'data'"):
        return _number_bytes(datatype, count, flat)


def _check_size(name: str, size: int, limit: int) -> None:
    if size > limit:
        raise invalid_arg(
            f"JSON input '{name}' has a byte_size ({size} bytes) that exceeds the maximum allowed value of "
            f"{limit} bytes. Use --http-max-input-size to increase the limit."
        )


def _number_bytes(datatype: str, count: int, flat: list[Any]) -> bytes:
    kind = DATATYPES[datatype].dtype.kind
    if not set(map(type, flat[:count])) <= _ALLOWED[kind]:
        raise internal(_REFUSALS[kind])
    if len(flat) != count:
        raise internal("Shape does not match true shape of 'data' field")
    if kind == "b":
        return bytes(flat)
    try:
        wide = np.array(flat, dtype=_WIDE[kind])
    except OverflowError:
        raise internal(_REFUSALS[kind]) from None
    with np.errstate(over="ignore", invalid="ignore"):
        return wide.astype(DATATYPES[datatype].dtype).tobytes()


def _string_bytes(name: str, data: list[Any], max_input_size: int) -> bytes:
    flat = flatten(data)
    if not set(map(type, flat)) <= {str}:
        raise internal("Unable to parse JSON bytes array: attempt to access JSON non-string as string")
    try:
        elements = [text.encode("utf-8", "surrogateescape") for text in flat]
    except UnicodeEncodeError:
        raise syntax_error("The surrogate pair in string is invalid.", 0) from None
    _check_size(name, sum(map(len, elements)) + 4 * len(elements), max_input_size)
    # Whether they are as many as the shape says is for the model's replica to tell, as with any strings.
    return pack_bytes(elements)


def flatten(data: list[Any]) -> list[Any]:
    """Return the leaves of nested lists in order, in time linear in their number.

    Raises:
        InferError: INVALID_ARG when nested more than 100 deep.
    """
    for _ in range(MAX_DEPTH):
        kinds = set(map(type, data))
        if list not in kinds:
            return data
        if len(kinds) > 1:
            return _flatten_ragged(data)
        data = list(chain.from_iterable(data))
    raise too_deep()


def _flatten_ragged(data: list[Any]) -> list[Any]:
    leaves: list[Any] = []
    stack = [iter(data)]
    while stack:
        for node in stack[-1]:
            if type(node) is list:
                stack.append(iter(node))
                break
            leaves.append(node)
        else:
            stack.pop()
        if len(stack) > MAX_DEPTH:
            raise too_deep()
    return leaves


def json_data(tensor: Tensor) -> bytes:
    """Print a tensor's data as a flat JSON array.

    Raises:
        InferError: INVALID_ARG for FP16 and BF16, INTERNAL when the data does not fit the shape.
    """
    if tensor.datatype in _BINARY_ONLY:
        raise invalid_arg(
            f"sending {tensor.datatype} data via JSON is not supported. "
            "Please use the binary data format for output"
        )
    if tensor.datatype == "BYTES":
        return _json_strings(tensor)
    row = DATATYPES[tensor.datatype]
    if len(tensor.data) != prod(tensor.shape) * row.itemsize:
        raise _size_error(tensor.name)
    if row.dtype.kind == "f":
        return _json_floats(np.frombuffer(tensor.data, row.dtype).astype(np.float64))
    if row.dtype.kind == "b":
        return msgspec.json.encode((np.frombuffer(tensor.data, np.uint8) != 0).tolist())
    return msgspec.json.encode(np.frombuffer(tensor.data, row.dtype).tolist())


def _json_floats(values: npt.NDArray[np.float64]) -> bytes:
    if (np.abs(values) < _EXPONENT_FROM).all():
        return msgspec.json.encode(values.tolist())
    return b"[%b]" % b",".join(map(_json_float, values.tolist()))


def _json_float(value: float) -> bytes:
    """Print as rapidjson: literals for what JSON has none for, an exponent from 1e21 on."""
    if not math.isfinite(value):
        return json.dumps(value).encode()
    if _EXPONENT_FROM <= abs(value) < _LONGEST:
        return b"%b.0" % format(Decimal(repr(value)), "f").encode()
    return msgspec.json.encode(value)


def _json_strings(tensor: Tensor) -> bytes:
    elements = _elements(tensor.name, tensor.data, prod(tensor.shape))
    try:
        return msgspec.json.encode([element.decode() for element in elements])
    except UnicodeDecodeError:
        texts = [element.decode("utf-8", "surrogateescape") for element in elements]
        printed = json.dumps(texts, ensure_ascii=False, separators=(",", ":"))
        return printed.encode("utf-8", "surrogateescape")


def _elements(name: str, data: Buffer, count: int) -> list[bytes]:
    try:
        return unpack_bytes(data, count)
    except InferError:
        raise _size_error(name) from None


def _size_error(name: str) -> InferError:
    return internal(f"output tensor shape does not match size of output for '{name}'")
