"""bfloat16 by DLPack: numpy, which has no such type, reads and writes it as uint16 once the type is renamed.

The structures are those of dlpack.h, of version 1 and of the time before it.
"""

import ctypes
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

CPU: Final = (1, 0)
"""kDLCPU, device 0."""
_UINT: Final = 1
_BFLOAT: Final = 4
_TENSOR_OFFSETS: Final = {b"dltensor": 0, b"dltensor_versioned": 32}
"""Where the tensor begins, by the name of the capsule, which another one has once it was read."""

_name_of = ctypes.pythonapi.PyCapsule_GetName
_name_of.restype, _name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class _DLTensor(ctypes.Structure):
    """The beginning of a DLTensor, up to its data type."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    ]


class Capsule:
    """Adds the two methods that numpy needs to a bare capsule, which must be CPU memory."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU


def bfloat16_capsule(patterns: Array) -> Any:
    """Return a capsule of a writable array of 16-bit patterns, as bfloat16, without a copy."""
    capsule = patterns.view(np.uint16).__dlpack__()
    _tensor_in(capsule).code = _BFLOAT
    return capsule


def read_bfloat16(source: Any) -> Array | None:
    """Return the 16-bit patterns of bfloat16 data in CPU memory, without a copy; None for other data.

    Args:
        source: an object with `__dlpack__`, or a capsule that was not read.
    """
    try:
        capsule = source.__dlpack__() if hasattr(source, "__dlpack__") else source
        tensor = _tensor_in(capsule)
    except (BufferError, RuntimeError, TypeError, ValueError):
        return None
    if (tensor.device_type, tensor.code, tensor.bits, tensor.lanes) != (CPU[0], _BFLOAT, 16, 1):
        return None
    tensor.code = _UINT
    array: Array = np.from_dlpack(Capsule(capsule))
    return array


def _tensor_in(capsule: Any) -> _DLTensor:
    """Return the tensor of a capsule.

    Raises:
        ValueError: it is no capsule of a tensor, or was read.
    """
    name = _name_of(capsule)
    if name not in _TENSOR_OFFSETS:
        raise ValueError("not a DLPack capsule, or read before")
    return _DLTensor.from_address(_pointer_of(capsule, name) + _TENSOR_OFFSETS[name])
