"""`pb_utils.Tensor`: a named array; that of a request is converted to numpy at the first access."""

from sys import getrefcount
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numpy import ndarray

from app.core.buffers import OwnedArray, writable_copy
from app.core.datatypes import DATATYPES, STRINGS, datatype_of, is_bfloat16, pack_bytes
from app.core.tensors import Tensor as WireTensor
from app.core.tensors import flat_bytes
from backends.python.api.dlpack import CPU, Capsule, bfloat16_capsule, read_bfloat16
from backends.python.api.errors import TritonModelException
from backends.python.api.text import as_text

Array = npt.NDArray[Any]

# numpy scalar type: the number of the configuration's DataType.
NUMPY_TO_TRITON: Final[dict[Any, int]] = {
    np.bool_: 1,
    np.uint8: 2,
    np.uint16: 3,
    np.uint32: 4,
    np.uint64: 5,
    np.int8: 6,
    np.int16: 7,
    np.int32: 8,
    np.int64: 9,
    np.float16: 10,
    np.float32: 11,
    np.float64: 12,
    np.object_: 13,
    np.bytes_: 13,
}
_BF16: Final = 14
# Up to this many bytes, a copy costs no more than the check whether one is needed.
_COPIED_ANYWAY: Final = 4096
_NOT_CONTIGUOUS: Final = (
    "DLPack tensor is not contiguous."
    " Only contiguous DLPack tensors that are stored in C-Order are supported."
)
_NO_BF16: Final = (
    "tensor dtype is bf16 and cannot be converted to numpy; read it by DLPack, as in"
    " torch.from_dlpack(tensor.to_dlpack())"
)
"""Triton's text, and the way out."""
_CONVERTED: Final = frozenset(("BYTES", "BF16"))
"""Data types whose arrays have other bytes, or bytes that numpy does not show."""
_SAME: Final = {name: row.dtype for name, row in DATATYPES.items() if name not in _CONVERTED}
_new: Final = object.__new__
_NAMES: Final = {dtype: name for name, dtype in _SAME.items()}


class Tensor:
    """A tensor of a request or a response.

    numpy has no bfloat16: a BF16 tensor of a request has no array, but its DLPack capsule carries the type. A
    model may make one of an array of `ml_dtypes.bfloat16`, or of 16-bit patterns (uint16) for a BF16 output.
    """

    __slots__ = ("_array", "_device", "_name", "_wire")

    def __init__(self, name: str | bytes, numpy_array: Array) -> None:
        if numpy_array.__class__ is not ndarray or numpy_array.dtype not in _NAMES:
            _check_array(name, numpy_array)
        self._name = name if name.__class__ is str else as_text(name)
        self._array: Array | None = numpy_array
        self._wire: WireTensor | None = None
        self._device: Any = None

    def name(self) -> str:
        """Return the tensor's name."""
        return self._name

    def as_numpy(self) -> Array:
        """Return the array, the same one at each call, writable; BYTES as an object array of bytes.

        Raises:
            TritonModelException: the tensor is in GPU memory, or of type BF16, which numpy has not.
        """
        wire = self._wire
        if wire is not None and wire.datatype == "BF16":
            raise TritonModelException(_NO_BF16)
        return self._numpy()

    def _numpy(self) -> Array:
        """Return the array; BF16 as its 16-bit patterns, uint16."""
        array = self._array
        if array is None:
            wire = self._wire
            array = self._array = _from_device(self._device) if wire is None else _from_wire(wire)
        return array

    def triton_dtype(self) -> int:
        """Return the number of the configuration's DataType."""
        if self._is_bf16():
            return _BF16
        if self._device is not None:
            return NUMPY_TO_TRITON[_host_array(self._device).dtype.type]
        return NUMPY_TO_TRITON[self._numpy().dtype.type]

    def shape(self) -> list[int]:
        """Return the sizes of the dimensions."""
        if self._device is not None:
            return list(self._device.shape)
        return list(self._wire.shape if self._wire is not None else self._numpy().shape)

    def is_cpu(self) -> bool:
        """Whether the data is in CPU memory."""
        return self._device is None or self._device.device.type == "cpu"

    def to_dlpack(self) -> Any:
        """Return a DLPack capsule of the data, for one call of a framework's `from_dlpack`."""
        return self.__dlpack__()

    @staticmethod
    def from_dlpack(name: str | bytes, tensor: Any) -> "Tensor":
        """Return a tensor of an object with `__dlpack__` or of a DLPack capsule, without a copy on the CPU.

        Raises:
            TritonModelException: the data is not contiguous, or not in a form that can be read here.
        """
        if tensor is None:
            raise TritonModelException("a tensor is made of a DLPack capsule, not of None")
        return _imported(name, tensor)

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        if self._device is not None:
            return self._device.__dlpack__(stream=stream)
        if self._is_bf16():
            patterns = self._numpy()
            return bfloat16_capsule(patterns if patterns.flags.writeable else patterns.copy())
        array = self._numpy()
        # No read-only flag of DLPack is known to every framework, so a read-only view is copied.
        return (array if array.flags.writeable else array.copy()).__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU if self._device is None else self._device.__dlpack_device__()

    def _is_bf16(self) -> bool:
        if self._device is not None:
            return str(self._device.dtype) == "torch.bfloat16"
        if self._wire is not None:
            return self._wire.datatype == "BF16"
        return self._array is not None and is_bfloat16(self._array)

    def _to_wire(self, expected: str | None = None, viewed: bool = False) -> WireTensor:
        """Return the tensor in the form of requests and responses.

        Args:
            expected: the configuration's data type; it distinguishes BF16 bit patterns from UINT16.
            viewed: the model cannot change the array before it is sent, so it need not be copied.
        """
        if self._wire is not None:
            return self._wire
        array = self._array
        if array is not None and array.nbytes <= _COPIED_ANYWAY and expected is None:
            datatype = _NAMES.get(array.dtype)
            if datatype is not None:
                return WireTensor(self._name, datatype, array.shape, array.tobytes())
        if self._device is not None:
            array = _host_array(self._device)
            datatype = "BF16" if self._is_bf16() else datatype_of(array)
            return WireTensor(self._name, datatype, array.shape, _own_bytes(array))
        array = self._numpy()
        datatype = datatype_of(array)
        if datatype in _CONVERTED:
            packed = _packed(array) if datatype == "BYTES" else array.tobytes()
            return WireTensor(self._name, datatype, array.shape, packed)
        if expected == "BF16" and datatype == "UINT16":
            datatype = "BF16"
        data = flat_bytes(array) if viewed else _own_bytes(array)
        return WireTensor(self._name, datatype, array.shape, data)


def received_tensor(wire: WireTensor) -> Tensor:
    """Return the tensor of a request or a response."""
    tensor = _new(Tensor)
    tensor._name = wire.name
    tensor._array = None
    tensor._wire = wire
    tensor._device = None
    return tensor


def _check_array(name: str | bytes, array: Any) -> None:
    if not isinstance(array, ndarray):
        raise TypeError(f"tensor '{name!s}' must be made from a numpy.ndarray, found type '{type(array)}'")
    if isinstance(array, np.ma.MaskedArray):
        # What is behind the mask is whatever was in memory.
        raise TritonModelException(
            f"tensor '{name!s}' is made of a masked array: give its values a meaning first, by .filled(value)"
        )
    if array.dtype not in _NAMES and array.dtype.kind not in "OS" and not is_bfloat16(array):
        raise TritonModelException(f"NumPy dtype is not supported. It is {array.dtype!r}{_hint(array)}")


def _hint(array: Array) -> str:
    """Say how to convert an array whose type is one of Triton's but for the order of its bytes."""
    native = array.dtype.newbyteorder("=")
    return f": convert it by .astype('{native.name}')" if native in _NAMES else ""


def _from_wire(wire: WireTensor) -> Array:
    """Return an array of the bytes; read-only memory is copied, because models change inputs in place."""
    data = wire.data
    if data.__class__ is bytes and len(data) <= _COPIED_ANYWAY:
        dtype = _SAME.get(wire.datatype)
        if dtype is not None:
            own = ndarray(wire.shape, dtype, bytearray(data))
            if own.nbytes == len(data):
                return own
    array: Array = wire.array()
    if array.flags.writeable:
        return array
    return writable_copy(array) if array.nbytes > _COPIED_ANYWAY else array.copy()


def _from_device(device: Any) -> Array:
    if device.device.type != "cpu":
        raise TritonModelException("Tensor is stored in GPU and cannot be converted to NumPy.")
    return _host_array(device)


def _own_bytes(array: Array) -> memoryview | bytes:
    """Return the bytes of an output, copied unless there is no other reference to the array.

    A response is sent while the model may execute the next request; a model that fills the same array each
    time would put that request's data into this response.
    """
    if array.nbytes <= _COPIED_ANYWAY or not _is_exclusive(array):
        return array.tobytes() if array.nbytes <= _COPIED_ANYWAY else flat_bytes(array.copy())
    return flat_bytes(array)


def _is_exclusive(array: Array) -> bool:
    base: Any = array.base
    # References: the tensor, the two callers' and this function's variables, and getrefcount's argument.
    if getrefcount(array) > 5:
        return False
    if type(base) is np.ndarray:
        # A view of an array without other references: `result[None]`, `result.reshape(...)`.
        if getrefcount(base) > 3:
            return False
        base = base.base
    # An input's memory, which the request may reference too, but does not change.
    return base is None or (
        type(base) is memoryview and getrefcount(base) <= 3 and isinstance(base.obj, OwnedArray)
    )


def _packed(array: Array) -> bytes:
    """Pack string elements; those that are neither bytes nor str are converted by str(), as in Triton."""
    elements = array.ravel().tolist()
    joined = STRINGS.join(elements)
    if joined is not None:
        return joined
    return pack_bytes(element if isinstance(element, bytes | str) else str(element) for element in elements)


def _imported(name: str | bytes, source: Any) -> Tensor:
    name = as_text(name)
    if type(source) is Tensor and source._wire is not None and source._array is None:
        wire = source._wire  # not accessed yet: no conversion is needed
        return received_tensor(WireTensor(name, wire.datatype, wire.shape, wire.data))
    tensor = Tensor.__new__(Tensor)
    tensor._name, tensor._array, tensor._wire, tensor._device = name, None, None, None
    if type(source).__module__.partition(".")[0] == "torch":
        # Torch tensors are kept: numpy has neither their bfloat16 nor their devices.
        if not source.is_contiguous():
            raise TritonModelException(_NOT_CONTIGUOUS)
        tensor._device = source.detach()
        return tensor
    try:
        array = np.from_dlpack(source if hasattr(source, "__dlpack__") else Capsule(source))
    except (BufferError, RuntimeError, TypeError) as error:
        patterns = read_bfloat16(source)
        if patterns is not None:
            return received_tensor(_copied_bfloat16(name, patterns))
        readable = _read_by_torch(source)
        if readable is not None:
            return _imported(name, readable)
        raise TritonModelException(f"unable to read the DLPack tensor '{name}': {error}") from error
    if not array.flags.c_contiguous:
        raise TritonModelException(_NOT_CONTIGUOUS)
    tensor._array = array
    return tensor


def _copied_bfloat16(name: str, patterns: Array) -> WireTensor:
    if not patterns.flags.c_contiguous:
        raise TritonModelException(_NOT_CONTIGUOUS)
    return WireTensor(name, "BF16", patterns.shape, flat_bytes(patterns.copy()))


def _read_by_torch(source: Any) -> Any:
    """Return the torch tensor of DLPack data that is not in CPU memory, or None."""
    try:
        from torch.utils.dlpack import from_dlpack

        return from_dlpack(source)
    except (ImportError, BufferError, RuntimeError, TypeError, ValueError):
        return None


def _host_array(source: Any) -> Array:
    """Return the numpy array of a torch tensor; bfloat16 as uint16 bit patterns."""
    import torch

    host = source.cpu()
    if host.dtype == torch.bfloat16:
        return np.asarray(host.view(torch.int16).numpy().view(np.uint16))
    return np.asarray(host.numpy())
