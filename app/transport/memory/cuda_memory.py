"""Copies between this process's memory and GPU memory that a client shares through a CUDA IPC handle.

An allocation is opened for one copy and closed again: the driver counts openings, and the client's memory is
not held between requests. A range that is not within the allocation fails in the driver.
"""

import ctypes
import glob
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import numpy as np

from app.core.errors import internal
from app.core.tensors import RegionSlice

HANDLE_BYTES: Final = 64
"""Size of cudaIpcMemHandle_t."""

_LIBRARIES: Final = ("libcudart.so", "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0")
_LAZY_PEER_ACCESS: Final = 1
_HOST_TO_DEVICE: Final = 1
_DEVICE_TO_HOST: Final = 2


class _Handle(ctypes.Structure):
    """cudaIpcMemHandle_t, which CUDA takes by value."""

    _fields_ = (("reserved", ctypes.c_byte * HANDLE_BYTES),)


def device_count() -> int:
    """Count the GPUs of this node in the file system, so that an ingress need not start CUDA."""
    return len(glob.glob("/dev/nvidia[0-9]*"))


def read(place: RegionSlice) -> memoryview:
    """Copy a part of an allocation to the host.

    Raises:
        InferError: INTERNAL with CUDA's error text.
    """
    block = np.empty(place.nbytes, np.uint8)
    with _opened(place) as pointer:
        _copy(place.region, block.ctypes.data, pointer + place.offset, place.nbytes, _DEVICE_TO_HOST)
    return memoryview(block.data)


def write(place: RegionSlice, data: memoryview) -> None:
    """Copy bytes into an allocation.

    Raises:
        InferError: INTERNAL with CUDA's error text.
    """
    source = np.frombuffer(data, np.uint8)
    with _opened(place) as pointer:
        _copy(place.region, pointer + place.offset, source.ctypes.data, source.nbytes, _HOST_TO_DEVICE)


def _copy(region: str, target: int, source: int, nbytes: int, direction: int) -> None:
    arguments = ctypes.c_void_p(target), ctypes.c_void_p(source), ctypes.c_size_t(nbytes), direction
    _check(region, _runtime(region).cudaMemcpy(*arguments))


@contextmanager
def _opened(place: RegionSlice) -> Iterator[int]:
    runtime = _runtime(place.region)
    pointer = ctypes.c_void_p()
    handle = _Handle.from_buffer_copy(place.handle)
    _check(place.region, runtime.cudaSetDevice(place.device))
    _check(
        place.region,
        runtime.cudaIpcOpenMemHandle(ctypes.byref(pointer), handle, ctypes.c_uint(_LAZY_PEER_ACCESS)),
    )
    try:
        yield pointer.value or 0
    finally:
        runtime.cudaIpcCloseMemHandle(pointer)


def _check(region: str, status: int) -> None:
    if status:
        text = _runtime(region).cudaGetErrorString(status).decode(errors="replace")
        raise internal(f"CUDA shared memory region '{region}': {text}")


def _runtime(region: str) -> Any:
    library = _load()
    if library is None:
        raise internal(f"CUDA shared memory region '{region}': the CUDA runtime library cannot be loaded")
    return library


@cache
def _load() -> Any:
    """Load the CUDA runtime; a framework's own is loaded under one of these names already."""
    for name in _LIBRARIES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        library.cudaGetErrorString.restype = ctypes.c_char_p
        library.cudaIpcOpenMemHandle.argtypes = (ctypes.POINTER(ctypes.c_void_p), _Handle, ctypes.c_uint)
        return library
    return None
