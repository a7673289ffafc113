"""Tensors of the in-process API: bytes of the server, shared with numpy and other frameworks by DLPack."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from app.core.datatypes import unpack_bytes
from app.core.tensors import Buffer
from app.core.tensors import Tensor as WireTensor
from backends.python.api.tensor import Tensor as ModelTensor
from backends.python.api.tensor import received_tensor
from nereid.inprocess.errors import InvalidArgumentError, UnsupportedError, triton_errors
from nereid.inprocess.kinds import DataType, DLDeviceType, MemoryType

Array = npt.NDArray[Any]
Device = str | MemoryType | tuple[MemoryType | DLDeviceType, int]

_MEMORY: Final = {
    DLDeviceType.kDLCPU: MemoryType.CPU,
    DLDeviceType.kDLCUDA: MemoryType.GPU,
    DLDeviceType.kDLCUDAHost: MemoryType.CPU_PINNED,
}
_DEVICES: Final = {memory: device for device, memory in _MEMORY.items()}
_HOST: Final = (MemoryType.CPU, 0)


class MemoryBuffer:
    """The memory of a tensor.

    Attributes:
        owner: what keeps the memory: a buffer on the host, or an object with `__dlpack__` elsewhere.
        memory_type: where it is.
        memory_type_id: the number of the device.
    """

    __slots__ = ("memory_type", "memory_type_id", "owner")

    def __init__(self, owner: Any, memory_type: MemoryType = MemoryType.CPU, memory_type_id: int = 0) -> None:
        self.owner = owner
        self.memory_type = memory_type
        self.memory_type_id = memory_type_id

    @staticmethod
    def from_dlpack(owner: Any) -> "MemoryBuffer":
        """Return the memory of an object with `__dlpack__`."""
        return Tensor.from_dlpack(owner).memory_buffer

    @property
    def on_host(self) -> bool:
        """Whether numpy can read it."""
        return self.memory_type is not MemoryType.GPU

    @property
    def size(self) -> int:
        """Its bytes."""
        if self.on_host:
            return memoryview(self.owner).nbytes
        return int(self.owner.numel() * self.owner.element_size())

    @property
    def data_ptr(self) -> int:
        """Its address."""
        if self.on_host:
            return int(np.frombuffer(self.owner, np.uint8).ctypes.data) if self.size else 0
        return int(self.owner.data_ptr())


class _Held:
    """An array that holds the tensor whose data it is, as long as somebody else has it."""

    __slots__ = ("__array_interface__", "_array", "_tensor")

    def __init__(self, tensor: "Tensor", array: Array) -> None:
        self.__array_interface__ = array.__array_interface__
        self._array = array
        self._tensor = tensor


class Tensor:
    """A tensor, whose data other frameworks read by DLPack, which holds the tensor meanwhile.

    Attributes:
        data_type: of its elements.
        shape: sizes of its dimensions.
        memory_buffer: its data; BYTES elements are a length of four bytes followed by as many bytes.
    """

    __slots__ = ("data_type", "memory_buffer", "shape")

    def __init__(self, data_type: DataType, shape: Sequence[int], memory_buffer: MemoryBuffer) -> None:
        self.data_type = data_type
        self.shape = shape
        self.memory_buffer = memory_buffer

    def __repr__(self) -> str:
        return f"Tensor(data_type={self.data_type!r}, shape={list(self.shape)}, {self.memory_type!r})"

    @property
    def data_ptr(self) -> int:
        """The address of the data."""
        return self.memory_buffer.data_ptr

    @property
    def memory_type(self) -> MemoryType:
        """Where the data is."""
        return self.memory_buffer.memory_type

    @property
    def memory_type_id(self) -> int:
        """The number of the device that has the data."""
        return self.memory_buffer.memory_type_id

    @property
    def size(self) -> int:
        """The bytes of the data."""
        return self.memory_buffer.size

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        if not self.memory_buffer.on_host:
            return self.memory_buffer.owner.__dlpack__(stream=stream)
        if stream not in (None, 0):
            raise UnsupportedError(f"DLPack stream synchronization on memory type {self.memory_type!r}")
        if self.data_type is DataType.BYTES:
            raise UnsupportedError("DLPack has no type for BYTES: use to_bytes_array or to_string_array")
        exported = received_tensor(self.wire(""))
        exported._array = np.asarray(_Held(self, exported._numpy()))
        return exported.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return _DEVICES[self.memory_type], self.memory_type_id

    def to_bytes_array(self) -> Array:
        """Return the elements of a BYTES tensor as an object array of `bytes`."""
        if self.data_type is not DataType.BYTES:
            raise InvalidArgumentError(f"Tensor has data type {self.data_type!r} not {DataType.BYTES!r}")
        found = np.empty(int(np.prod(self.shape, dtype=np.int64)), dtype=object)
        with triton_errors():
            found[:] = unpack_bytes(self.memory_buffer.owner, len(found))
        return found.reshape(tuple(self.shape))

    def to_string_array(self) -> Array:
        """Return the elements of a BYTES tensor as an array of `str`, which they have to be in UTF-8."""
        decoded = [element.decode() for element in self.to_bytes_array().ravel().tolist()]
        return np.array(decoded, dtype=np.str_).reshape(tuple(self.shape))

    @staticmethod
    def from_string_array(strings: Any) -> "Tensor":
        """Return a BYTES tensor of strings, in UTF-8."""
        return Tensor.from_bytes_array(strings)

    @staticmethod
    def from_bytes_array(elements: Any) -> "Tensor":
        """Return a BYTES tensor of strings or bytes."""
        tensor = Tensor.from_object(elements)
        if tensor.data_type is not DataType.BYTES:
            raise InvalidArgumentError(f"not strings or bytes, but {tensor.data_type!r}")
        return tensor

    @staticmethod
    def from_dlpack(source: Any) -> "Tensor":
        """Return a tensor of an object with `__dlpack__`; its memory is not copied, unless it is small."""
        with triton_errors():
            found = ModelTensor.from_dlpack("", source)
            if found.is_cpu():
                return Tensor.from_wire(found._to_wire(viewed=True))
            kind, number = found.__dlpack_device__()
            buffer = MemoryBuffer(found._device, _MEMORY[DLDeviceType(kind)], number)
            return Tensor(DataType(found.triton_dtype()), found.shape(), buffer)

    @staticmethod
    def from_object(value: Any) -> "Tensor":
        """Return a tensor of a list, an array, or an object with `__dlpack__`; arrays are not copied."""
        if isinstance(value, Tensor):
            return value
        if isinstance(value, list | tuple | np.ndarray | np.generic):
            with triton_errors():
                return Tensor.from_wire(WireTensor.from_array("", np.asarray(value)))
        if hasattr(value, "__dlpack__"):
            return Tensor.from_dlpack(value)
        raise InvalidArgumentError(f"Input type {type(value)} is not supported: it has no __dlpack__")

    @staticmethod
    def from_wire(wire: WireTensor) -> "Tensor":
        """Return a tensor of the server."""
        return Tensor(DataType[wire.datatype], wire.shape, MemoryBuffer(wire.data))

    def wire(self, name: str) -> WireTensor:
        """Return the tensor in the form of the server; from another device, a copy."""
        host = self if self.memory_buffer.on_host else self.to_host()
        data: Buffer = host.memory_buffer.owner
        return WireTensor(name, host.data_type.name, tuple(host.shape), data)

    def to_host(self) -> "Tensor":
        """Return the tensor in the host's memory: itself, or a copy."""
        return self.to_device("cpu")

    def to_device(self, device: Device) -> "Tensor":
        """Return the tensor on a device: itself, or a copy, which needs PyTorch.

        Args:
            device: "cpu", "gpu", "gpu:1", a `MemoryType`, or a pair of that or a `DLDeviceType` and a number.

        Raises:
            InvalidArgumentError: there is no such device.
            UnsupportedError: the copy cannot be made here.
        """
        wanted = parsed_device(device)
        on_host = self.memory_buffer.on_host
        if wanted == (self.memory_type, self.memory_type_id) or (wanted == _HOST and on_host):
            return self
        if self.data_type is DataType.BYTES:
            raise UnsupportedError("BYTES tensors are in the host's memory only")
        try:
            import torch.utils.dlpack
        except ImportError:
            raise UnsupportedError("copies between devices need PyTorch, which is missing") from None
        try:
            place = "cpu" if wanted == _HOST else f"cuda:{wanted[1]}"
            return Tensor.from_dlpack(torch.utils.dlpack.from_dlpack(self).to(place))
        except (RuntimeError, AssertionError) as error:  # torch asserts that it was built for CUDA
            raise UnsupportedError(f"Conversion to {wanted} not supported: {error}") from None


def parsed_device(device: Device) -> tuple[MemoryType, int]:
    """Return kind and number of a device; see `Tensor.to_device`.

    Raises:
        InvalidArgumentError: it is none.
    """
    try:
        if isinstance(device, str):
            name, _, number = device.partition(":")
            return {"cpu": MemoryType.CPU, "gpu": MemoryType.GPU}[name.lower()], int(number or 0)
        if isinstance(device, tuple):
            kind, ordinal = device
            return _MEMORY[kind] if isinstance(kind, DLDeviceType) else MemoryType(kind), int(ordinal)
        return MemoryType(device), 0
    except (KeyError, ValueError, TypeError):
        raise InvalidArgumentError(f"Device {device!r} is not supported") from None
