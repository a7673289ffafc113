"""Conversion of tensor data between JSON values and wire bytes.

Reading follows Triton: nesting is ignored, integers are truncated to their type like a C cast, a wrong JSON
type is an INTERNAL error. Writing widens FP32 to double before printing, so 0.1f reads 0.10000000149011612.
"""

import json
import math
from array import array
from collections.abc import Callable
from decimal import Decimal
from itertools import chain
from math import prod
from typing import Any, Final

import msgspec
import numpy as np

from app.core.config.request_hints import count_hint
from app.core.datatypes import DATATYPES, pack_bytes, unpack_bytes, unpack_text
from app.core.errors import ErrorCode, InferError, internal, invalid_arg, shortened
from app.core.hints import hinted
from app.core.tensors import Tensor
from app.protocol.http.strict_json import MAX_DEPTH, syntax_error, too_deep

MAX_ELEMENT_COUNT: Final = (1 << 63) - 1
MAX_RANK: Final = 64  # of a numpy array
_MSGSPEC_EXPONENT: Final = 1e16  # magnitude from which msgspec prints an exponent
_RAPIDJSON_EXPONENT: Final = 1e21  # magnitude from which rapidjson does
_encode: Final = msgspec.json.Encoder().encode

_BINARY_ONLY: Final = frozenset(("FP16", "BF16"))
_NUMBERS: Final = frozenset((int, float))
_WIDEST: Final = {"u": np.uint64, "i": np.int64}
_CODES: Final = {
    **{"FP32": "f", "FP64": "d"},
    **{"INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q"},
    **{"UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q"},
}
"""Of the `array` types of the same layout."""
_REFUSALS: Final = {
    "b": "attempt to access JSON non-boolean as boolean",
    "u": "attempt to access JSON non-unsigned-integer as unsigned-integer",
    "i": "attempt to access JSON non-signed-integer as signed-integer",
    "f": "attempt to access JSON non-number as double",
}
_DATA: Final = "Unable to parse 'data': "
_KINDS: Final = {"b": "true or false", "u": "whole numbers from 0", "i": "whole numbers", "f": "numbers"}
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
    if max(shape, default=0) > MAX_ELEMENT_COUNT:
        raise invalid_arg(
            f"invalid shape for input '{name}': shape {_signed(shape)} contains one or more invalid "
            "dimensions"
        )
    # To Triton an empty shape has no elements, not one; the model's replica accepts or refuses it.
    count = prod(shape) if shape else 0
    if count > MAX_ELEMENT_COUNT:
        raise invalid_arg(
            f"invalid shape for input '{name}': shape {_signed(shape)} causes total element count to exceed "
            f"maximum size of {MAX_ELEMENT_COUNT}"
        )
    return count


def _signed(shape: tuple[int, ...]) -> str:
    """Format a shape in signed 64-bit integers, as Triton does."""
    return "[" + ",".join(str((dim + (1 << 63)) % (1 << 64) - (1 << 63)) for dim in shape) + "]"


def tensor_bytes(name: str, datatype: str, count: int, data: Any, max_input_size: int) -> bytes:
    """Convert a decoded JSON `data` value to wire bytes.

    Args:
        name: input name, for the error texts.
        datatype: v2 data type name.
        count: elements of the shape.
        data: the JSON value, of any nesting.
        max_input_size: limit on the bytes of a tensor given as JSON.

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
    try:
        return _number_bytes(datatype, count, flatten(data))
    except _WrongValues as wrong:
        raise DataError(name, wrong.text, wrong.hint(name, datatype, count)) from None


def _check_size(name: str, size: int, limit: int) -> None:
    if size > limit:
        raise invalid_arg(
            f"JSON input '{name}' has a byte_size ({size} bytes) that exceeds the maximum allowed value of "
            f"{limit} bytes. Use --http-max-input-size to increase the limit."
        )


def _number_bytes(datatype: str, count: int, flat: list[Any]) -> bytes:
    dtype = DATATYPES[datatype].dtype
    kind = dtype.kind
    if not set(map(type, flat[:count])) <= _ALLOWED[kind]:
        raise _WrongValues(_DATA + _REFUSALS[kind], flat)
    if len(flat) > count:
        raise _WrongValues(_DATA + "Shape does not match true shape of 'data' field", flat)
    if len(flat) < count:
        raise _WrongValues("Failed to parse 'data' field: shape does not match true shape", flat)
    if kind == "b":
        return bytes(flat)
    try:  # `array` casts floats like C: a number beyond FP32 is infinite, without numpy's warning
        return array(_CODES[datatype], flat).tobytes()
    except OverflowError:
        return _truncated(datatype, flat)


def _truncated(datatype: str, flat: list[Any]) -> bytes:
    """Cast numbers, of which at least one does not fit the data type, like C."""
    dtype = DATATYPES[datatype].dtype
    try:
        return np.array(flat, dtype=_WIDEST[dtype.kind]).astype(dtype).tobytes()
    except (KeyError, OverflowError):
        raise _WrongValues(_DATA + _REFUSALS[dtype.kind], flat) from None


class DataError(InferError):
    """The data of an input is not what its shape and data type say."""

    def __init__(self, name: str, text: str, hint: str) -> None:
        super().__init__(ErrorCode.INTERNAL, hinted(text, hint))
        self.input = name


class _WrongValues(Exception):
    """The values of an input are of another type or number."""

    def __init__(self, text: str, flat: list[Any]) -> None:
        super().__init__(text)
        self.text = text
        self._flat = flat

    def hint(self, name: str, datatype: str, count: int) -> str:
        """Say what is wrong: their number before their types, which often follow from it."""
        flat, kind = self._flat, DATATYPES[datatype].dtype.kind
        if len(flat) != count:
            return count_hint(name, count, len(flat))
        odd = next((value for value in flat if type(value) not in _ALLOWED[kind]), None)
        value = "" if odd is None else f", {shortened(json.dumps(odd), 40)} is none"
        return f"the data of input '{name}' has to be {_KINDS[kind]} ({datatype}){value}"


def _string_bytes(name: str, data: list[Any], max_input_size: int) -> bytes:
    flat = flatten(data)
    if not set(map(type, flat)) <= {str}:
        text = "Unable to parse JSON bytes array: attempt to access JSON non-string as string"
        raise DataError(name, text, f"the data of input '{name}' has to be strings (BYTES)")
    try:
        elements = [text.encode("utf-8", "surrogateescape") for text in flat]
    except UnicodeEncodeError:
        raise syntax_error("The surrogate pair in string is invalid.", 0) from None
    _check_size(name, sum(map(len, elements)) + 4 * len(elements), max_input_size)
    # The model's replica checks that there are as many as the shape says, as with any strings.
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


EncodeData = Callable[[Tensor], bytes]
"""Encodes the data of a tensor; see `encode_data`."""


def encode_data(tensor: Tensor) -> bytes:
    """Encode a tensor's data as a flat JSON array.

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
    if row.dtype.kind == "b":
        return _encode((np.frombuffer(tensor.data, np.uint8) != 0).tolist())
    values = np.frombuffer(tensor.data, row.dtype).tolist()
    text = _encode(values)
    # msgspec prints null for NaN and Infinity.
    if text.count(b"e") > text.count(b"e-") or b"n" in text:
        return b"[%b]" % b",".join(map(_json_float, values))
    return text


def _json_float(value: float) -> bytes:
    """Encode like rapidjson: NaN and Infinity as literals, an exponent from 1e21 on."""
    if not math.isfinite(value):
        return json.dumps(value).encode()
    if _MSGSPEC_EXPONENT <= abs(value) < _RAPIDJSON_EXPONENT:
        return b"%b.0" % format(Decimal(repr(value)), "f").encode()
    return msgspec.json.encode(value)


def _json_strings(tensor: Tensor) -> bytes:
    try:
        return msgspec.json.encode(unpack_text(tensor.data, prod(tensor.shape)))
    except InferError:
        raise _size_error(tensor.name) from None
    except UnicodeDecodeError:
        elements = unpack_bytes(tensor.data, prod(tensor.shape))
        texts = [element.decode("utf-8", "surrogateescape") for element in elements]
        encoded = json.dumps(texts, ensure_ascii=False, separators=(",", ":"))
        return encoded.encode("utf-8", "surrogateescape")


def _size_error(name: str) -> InferError:
    return internal(f"output tensor shape does not match size of output for '{name}'")
