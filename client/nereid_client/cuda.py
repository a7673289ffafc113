"""Memory of a GPU that a server on this machine reads and writes: by CUDA IPC, as tensors of PyTorch."""

from __future__ import annotations

import ctypes
import weakref
from functools import cache
from typing import Any, Final

from nereid_client import tensors
from nereid_client.memory import region_name
from nereid_client.transport import Transport

_HANDLE_BYTES: Final = 64
_LIBRARIES: Final = ("libcudart.so", "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0")
_BLOCK: Final = 2 << 20
"""CUDA shares whole blocks of 2 MiB: a smaller allocation would show what else is in its block."""


class _Handle(ctypes.Structure):
    """cudaIpcMemHandle_t."""

    _fields_ = (("reserved", ctypes.c_byte * _HANDLE_BYTES),)


class _Slot:
    """A part of an allocation, as PyTorch reads it; its tensors keep it, and it keeps the allocation."""

    def __init__(self, memory: CudaMemory, start: int, size: int) -> None:
        self._memory = memory
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (memory.pointer + start, False),
            "version": 3,
        }


class CudaMemory:
    """An allocation on a GPU, freed with the last tensor in it, or with its process.

    Args:
        size: its bytes.
        device: the number of the GPU, as PyTorch counts them in this process; the server must count alike.

    Raises:
        RuntimeError: CUDA's text.
        ImportError: PyTorch is missing.
    """

    def __init__(self, size: int, device: int) -> None:
        self.name, self.size, self._device = region_name(), size, device
        pointer, handle = ctypes.c_void_p(), _Handle()
        runtime = _runtime()
        with _current(device):
            blocks = -(-size // _BLOCK) * _BLOCK
            _check(runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(blocks)))
            self.pointer = pointer.value or 0
            weakref.finalize(self, runtime.cudaFree, ctypes.c_void_p(self.pointer))
            _check(runtime.cudaIpcGetMemHandle(ctypes.byref(handle), pointer))
        self._handle = bytes(handle)

    async def register(self, transport: Transport, timeout: float) -> None:
        await transport.register_cuda(self.name, self._handle, self._device, self.size, timeout)

    async def unregister(self, transport: Transport, timeout: float) -> None:
        await transport.unregister_cuda(self.name, timeout)

    def close(self) -> None:
        """Do nothing: the allocation ends with its last tensor."""

    def slot(self, start: int, size: int) -> tuple[object, Any]:
        slot = _Slot(self, start, size)
        return slot, _view(slot, self._device)

    def write(self, view: Any, data: Any) -> None:
        tensors.write(view, data)
        _synchronize(self._device)  # another process reads it next

    def array(self, view: Any, datatype: str, shape: tuple[int, ...]) -> Any:
        return tensors.typed(view, datatype, shape)


def _current(device: int) -> Any:
    """Return the context in which calls of the runtime are for a GPU."""
    import torch

    return torch.cuda.device(device)


def _view(slot: _Slot, device: int) -> Any:
    import torch

    return torch.as_tensor(slot, device=f"cuda:{device}")


def _synchronize(device: int) -> None:
    import torch

    torch.cuda.current_stream(device).synchronize()


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"memory for a pool: {_runtime().cudaGetErrorString(status).decode()}")


@cache
def _runtime() -> Any:
    """Load the CUDA runtime; PyTorch's own is loaded under one of these names already."""
    import torch

    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except AssertionError as error:  # PyTorch's, where it is built without CUDA
        raise RuntimeError(f"memory for a pool: {error}") from None
    for name in _LIBRARIES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        library.cudaGetErrorString.restype = ctypes.c_char_p
        return library
    raise RuntimeError("memory for a pool: the CUDA runtime library cannot be loaded")
