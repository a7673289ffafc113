"""Arrays of numpy as the bytes of the protocol, and back."""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np

from nereid_client import tensors
from nereid_client.errors import InputError

Array = np.ndarray[Any, Any]

NUMPY: Final[dict[str, np.dtype[Any]]] = {
    name: np.dtype(kind)
    for name, kind in (
        ("BOOL", "?"),
        ("UINT8", "u1"),
        ("UINT16", "<u2"),
        ("UINT32", "<u4"),
        ("UINT64", "<u8"),
        ("INT8", "i1"),
        ("INT16", "<i2"),
        ("INT32", "<i4"),
        ("INT64", "<i8"),
        ("FP16", "<f2"),
        ("FP32", "<f4"),
        ("FP64", "<f8"),
        ("BF16", "<f4"),  # numpy has none: given and returned as float32
        ("BYTES", "O"),
    )
}
"""The dtype of an array by the name of its datatype. The elements of BYTES are `bytes`."""


def to_array(name: str, value: Any, datatype: str) -> Array:
    """Return a value as an array of a datatype, in C order.

    Lists and numbers take the datatype of the input. An array of another dtype is converted if that loses
    nothing. A tensor on a GPU is returned as one.

    Raises:
        InputError: it cannot be converted.
    """
    wanted = NUMPY.get(datatype)
    if wanted is None:
        raise InputError(f"input '{name}' has the datatype {datatype}, which this client does not know")
    if tensors.is_on_gpu(value):
        on_gpu: Array = tensors.checked(name, value, datatype)
        return on_gpu
    if datatype == "BYTES":
        return _bytes_array(name, value)
    if hasattr(value, "dtype"):
        array = np.asarray(value)
        if array.dtype != wanted and not np.can_cast(array.dtype, wanted, "safe"):
            raise InputError(
                f"input '{name}' is {datatype}, the array is {array.dtype}: convert it with "
                f".astype('{wanted.name}')"
            )
        return np.ascontiguousarray(array, wanted).reshape(array.shape)
    try:
        return np.array(value, wanted)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"input '{name}' is {datatype}: {error}") from None


def _bytes_array(name: str, value: Any) -> Array:
    if isinstance(value, str | bytes | bytearray | memoryview):
        array = np.empty((), object)
        array[()] = value
    elif isinstance(value, np.ndarray):
        array = value.astype(object)
    else:
        array = np.array(value, object)
    flat = np.empty(array.size, object)
    for i, element in enumerate(array.reshape(-1)):
        if isinstance(element, str):
            flat[i] = element.encode()
        elif isinstance(element, bytes | bytearray | memoryview):
            flat[i] = bytes(element)
        else:
            raise InputError(f"input '{name}' is BYTES: give str or bytes, not {type(element).__name__}")
    return flat.reshape(array.shape)


def encode(array: Array, datatype: str) -> Any:
    """Return the bytes of an array from `to_array`, as a memoryview; not copied where they are its own.

    Those of a tensor on a GPU are a tensor there.
    """
    if tensors.is_on_gpu(array):
        return tensors.as_bytes(array)
    if datatype == "BYTES":
        return memoryview(b"".join(struct.pack("<I", len(item)) + item for item in array.reshape(-1)))
    if datatype == "BF16":
        return memoryview(_rounded_upper_half(array).tobytes())
    return array.reshape(-1).view(np.uint8).data


def _rounded_upper_half(array: Array) -> Array:
    """Return float32 as bfloat16, rounded to nearest even, as uint16."""
    bits = np.ascontiguousarray(array).view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2")
    return np.where(np.isnan(array), np.uint16(0x7FC0), rounded)


def decode(data: Any, datatype: str, shape: tuple[int, ...]) -> Array:
    """Return the array of a tensor's bytes; a view of them where that is possible.

    Raises:
        ValueError: the bytes are not those of such a tensor.
    """
    if datatype == "BYTES":
        return _split_bytes(memoryview(data).cast("B"), shape)
    if datatype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
    return np.frombuffer(data, NUMPY[datatype]).reshape(shape)


def _split_bytes(data: memoryview, shape: tuple[int, ...]) -> Array:
    elements, position = [], 0
    while position < len(data):
        (length,) = struct.unpack_from("<I", data, position)
        position += 4
        if position + length > len(data):
            raise ValueError("the last element of a BYTES tensor is cut off")
        elements.append(bytes(data[position : position + length]))
        position += length
    array = np.empty(len(elements), object)
    array[:] = elements
    return array.reshape(shape)


def byte_size(datatype: str, shape: tuple[int, ...]) -> int | None:
    """Return the bytes of a tensor; None where only its elements tell."""
    if datatype == "BYTES" or any(dim < 0 for dim in shape):
        return None
    element = 2 if datatype == "BF16" else NUMPY[datatype].itemsize
    return element * int(np.prod(shape, dtype=np.int64))
