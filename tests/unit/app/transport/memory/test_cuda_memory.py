"""CUDA regions: what is asked of the CUDA runtime; with a GPU, real memory of another process."""

import base64
import ctypes
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from app.core.errors import ErrorCode, InferError
from app.core.tensors import RegionSlice
from app.transport.memory import cuda_memory

HANDLE = bytes(range(64))


class FakeRuntime:
    """The six functions over memory of this process."""

    def __init__(self) -> None:
        self.memory = ctypes.create_string_buffer(b"0123456789abcdef", 16)
        self.device = -1
        self.open = 0
        self.failure = 0

    def cudaSetDevice(self, device: int) -> int:
        self.device = device
        return 0

    def cudaIpcOpenMemHandle(self, pointer: Any, handle: Any, flags: Any) -> int:
        if bytes(handle.reserved) != HANDLE:
            return 1
        self.open += 1
        pointer._obj.value = ctypes.addressof(self.memory)
        return 0

    def cudaIpcCloseMemHandle(self, pointer: Any) -> int:
        self.open -= 1
        return 0

    def cudaMemcpy(self, target: Any, source: Any, nbytes: Any, direction: int) -> int:
        if not self.failure:
            ctypes.memmove(target, source, nbytes.value)
        return self.failure

    def cudaGetErrorString(self, status: int) -> bytes:
        return b"invalid argument"


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> FakeRuntime:
    fake = FakeRuntime()
    monkeypatch.setattr(cuda_memory, "_load", lambda: fake)
    return fake


def place(offset: int, nbytes: int, handle: bytes = HANDLE) -> RegionSlice:
    return RegionSlice("r", offset, nbytes, handle=handle, device=3)


def test_bytes_are_copied_both_ways(runtime: FakeRuntime) -> None:
    assert bytes(cuda_memory.read(place(10, 6))) == b"abcdef"
    cuda_memory.write(place(2, 3), memoryview(b"xyz"))
    assert runtime.memory.raw == b"01xyz56789abcdef"
    assert (runtime.device, runtime.open) == (3, 0)


def test_failure_names_the_region_and_closes_the_handle(runtime: FakeRuntime) -> None:
    runtime.failure = 1
    with pytest.raises(InferError) as caught:
        cuda_memory.read(place(0, 4))
    assert caught.value.code is ErrorCode.INTERNAL
    assert caught.value.message == "CUDA shared memory region 'r': invalid argument"
    assert runtime.open == 0
    with pytest.raises(InferError):
        cuda_memory.write(place(0, 4, bytes(64)), memoryview(b"abcd"))
    assert runtime.open == 0


OWNER = """
import base64, ctypes, sys
from app.transport.memory.cuda_memory import _load, _Handle
cuda, pointer, handle = _load(), ctypes.c_void_p(), _Handle()
host = ctypes.create_string_buffer(b"0123456789abcdef", 16)
assert cuda.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(16)) == 0
assert cuda.cudaMemcpy(pointer, host, ctypes.c_size_t(16), 1) == 0
assert cuda.cudaIpcGetMemHandle(ctypes.byref(handle), pointer) == 0
print(base64.b64encode(bytes(handle)).decode(), flush=True)
sys.stdin.readline()
assert cuda.cudaMemcpy(host, pointer, ctypes.c_size_t(16), 2) == 0
print(host.raw.decode(), flush=True)
"""


@pytest.fixture
def owner() -> Iterator[Any]:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process


@pytest.mark.gpu
@pytest.mark.skipif(not cuda_memory.device_count(), reason="there is no GPU")
def test_memory_of_another_process(owner: Any) -> None:
    handle = base64.b64decode(owner.stdout.readline())
    assert len(handle) == cuda_memory.HANDLE_BYTES
    part = RegionSlice("r", 10, 6, handle=handle)
    assert bytes(cuda_memory.read(part)) == b"abcdef"
    cuda_memory.write(RegionSlice("r", 0, 3, handle=handle), memoryview(b"xyz"))
    assert owner.communicate("\n", timeout=30)[0].strip() == "xyz3456789abcdef"
    with pytest.raises(InferError):
        cuda_memory.read(RegionSlice("r", 0, 1 << 40, handle=handle))
