"""Slots as tensors of PyTorch: of host memory with a real server, of a GPU with a stand-in of CUDA.

With a GPU (`make test-gpu`) the whole way.
"""

import asyncio
import contextlib
import ctypes
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nereid_client import InputError, connect, connect_async, cuda, tensors
from nereid_client.aio import AsyncServer
from nereid_client.grpc import GrpcTransport
from nereid_client.http import HttpTransport
from nereid_client.memory import HostMemory
from nereid_client.pool import AsyncPool, read_size
from tests.server import EngineServer
from tests.unit.client.serving import Addresses, serve
from tests.unit.nereid.engine.repositories import add_model

TENSORS = """
max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
VALUES = [[1.0, 2.0, 3.0, 4.0]]
URLS = ["http", "grpc"]
on_a_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    repository = tmp_path_factory.mktemp("models")
    add_model(repository, "double", config=TENSORS)
    yield from serve(repository, load_model=["double"], allow_client_shm=True)


class TensorMemory(HostMemory):
    """Host memory whose slots are read and written as those of a GPU are."""

    def slot(self, start: int, size: int) -> tuple[object, Any]:
        slot, view = super().slot(start, size)
        return slot, torch.from_numpy(np.frombuffer(view, np.uint8))

    def write(self, view: Any, data: Any) -> None:
        tensors.write(view, data)

    def array(self, view: Any, datatype: str, shape: tuple[int, ...]) -> Any:
        return tensors.typed(view, datatype, shape)


class Elsewhere(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    is_cuda = True


@pytest.mark.parametrize("url", URLS)
async def test_tensors_go_through_slots(
    addresses: Addresses, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nereid_client.pool.HostMemory", TensorMemory)
    async with connect_async(getattr(addresses, url), timeout=30) as server, server.pool(1, 256) as pool:
        model = server.model("double").via(pool)
        given = torch.tensor(VALUES).as_subclass(Elsewhere)
        for values in (given, VALUES, given[0]):
            result = await model(IN=values)
            tensor: Any = result["OUT"]
            assert isinstance(tensor, torch.Tensor) and tensor.reshape(-1).tolist() == [2, 4, 6, 8]
            copied: Any = result.copy()["OUT"]
            kept = tensor[..., 1:]
            result.close()
            del result, tensor
            assert pool.lease() is None  # a part of it is left
            del kept
            await drained(pool)
            assert copied.reshape(-1).tolist() == [2, 4, 6, 8]
        assert pool.missed == 3  # by the leases above


async def drained(pool: AsyncPool) -> None:
    """Wait until a slot is free, and give it back."""
    async with asyncio.timeout(10):
        while (lease := pool.lease()) is None:
            pool.missed -= 1
            await asyncio.sleep(0)
    del lease
    await asyncio.sleep(0)


@pytest.mark.parametrize("url", URLS)
def test_without_a_pool_tensors_are_copied_to_the_host(addresses: Addresses, url: str) -> None:
    with connect(getattr(addresses, url), timeout=30) as server:
        model = server.model("double")
        assert model(IN=torch.tensor(VALUES).as_subclass(Elsewhere))["OUT"].tolist() == [[2, 4, 6, 8]]
        with pytest.raises(
            InputError, match=r"'IN' is FP32, the tensor is float64: convert it with \.to\(\)"
        ):
            model(IN=torch.tensor(VALUES, dtype=torch.float64).as_subclass(Elsewhere))


@pytest.mark.parametrize("device", ["tpu", "cuda:", "cuda:x", "cpu:0"])
async def test_a_device_that_there_is_not(addresses: Addresses, device: str) -> None:
    async with AsyncServer(addresses.http) as server:
        with pytest.raises(ValueError, match=f"'{device}' is no device, give 'cpu', 'cuda' or e.g. 'cuda:1'"):
            async with server.pool(device=device):
                pass


class Runtime:
    """The functions of CUDA's runtime, over memory of the host."""

    def __init__(self) -> None:
        self.blocks: dict[int, Any] = {}
        self.failure = 0

    def cudaMalloc(self, pointer: Any, size: Any) -> int:
        block = ctypes.create_string_buffer(size.value)
        self.blocks[ctypes.addressof(block)] = block
        pointer._obj.value = ctypes.addressof(block)
        return 0

    def cudaIpcGetMemHandle(self, handle: Any, pointer: Any) -> int:
        ctypes.memmove(handle, pointer.value.to_bytes(8, "little"), 8)
        return self.failure

    def cudaFree(self, pointer: Any) -> int:
        del self.blocks[pointer.value]
        return 0

    def cudaGetErrorString(self, status: int) -> bytes:
        return b"out of memory"


def host_view(slot: Any, device: int) -> torch.Tensor:
    """Read the interface of a slot as PyTorch does, on the host."""
    interface = slot.__cuda_array_interface__
    assert interface["typestr"] == "|u1" and not interface["data"][1]
    view = (ctypes.c_char * interface["shape"][0]).from_address(interface["data"][0])
    view.slot = slot
    return torch.frombuffer(view, dtype=torch.uint8)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    found = Runtime()
    monkeypatch.setattr(cuda, "_runtime", lambda: found)
    monkeypatch.setattr(cuda, "_current", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(cuda, "_view", host_view)
    monkeypatch.setattr(cuda, "_synchronize", lambda device: None)
    return found


@pytest.mark.parametrize("kind", [HttpTransport, GrpcTransport])
async def test_the_region_is_registered_by_its_handle(runtime: Runtime, kind: Any) -> None:
    asked: list[Any] = []

    async def ask(*words: Any, **body: Any) -> None:
        asked.append((words, body))

    transport = kind.__new__(kind)
    transport._json = transport._call = ask
    pool = AsyncPool(transport, 2, 100, "cuda:1")
    await pool.open()
    await pool.close()
    ((first, body), (second, _)) = asked
    (address, block) = next(iter(runtime.blocks.items()))
    assert len(block) == read_size("2MiB")  # a block of CUDA's own
    handle = address.to_bytes(8, "little").ljust(64, b"\0")
    if kind is GrpcTransport:
        request = first[1]
        assert (request.name, request.raw_handle) == (pool.region, handle)
        assert (request.device_id, request.byte_size) == (1, 256)
        assert (first[0], second[0]) == ("CudaSharedMemoryRegister", "CudaSharedMemoryUnregister")
    else:
        assert first[1] == f"/v2/cudasharedmemory/region/{pool.region}/register"
        assert body["json"]["device_id"] == 1 and body["json"]["byte_size"] == 256
        assert second[1] == f"/v2/cudasharedmemory/region/{pool.region}/unregister"


def test_the_allocation_ends_with_its_last_tensor(runtime: Runtime) -> None:
    memory = cuda.CudaMemory(256, 0)
    slot, view = memory.slot(128, 128)
    memory.write(view[:16], np.arange(4, dtype=np.float32).view(np.uint8).data)
    part = memory.array(view[:16], "FP32", (4,))[2:]
    del memory, slot, view
    gc.collect()
    assert len(runtime.blocks) == 1 and part.tolist() == [2, 3]
    del part
    gc.collect()
    assert not runtime.blocks


def test_a_failure_has_the_text_of_cuda_and_frees(runtime: Runtime) -> None:
    runtime.failure = 2
    with pytest.raises(RuntimeError, match="memory for a pool: out of memory"):
        cuda.CudaMemory(256, 0)
    gc.collect()
    assert not runtime.blocks


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
async def test_without_a_gpu_the_reason_is_told(addresses: Addresses) -> None:
    async with AsyncServer(addresses.http) as server:
        with pytest.raises(RuntimeError, match=r"CUDA|NVIDIA"):
            async with server.pool(device="cuda"):
                pass


@pytest.mark.parametrize("url", [pytest.param(url, marks=on_a_gpu) for url in URLS])
def test_on_a_gpu(tmp_path: Path, url: str) -> None:
    """Needs a server in another process: CUDA does not open a handle in the process that made it."""
    add_model(tmp_path / "models", "double", config=TENSORS)
    arguments = [str(tmp_path / "models"), "--allow-client-shm=true"]
    server = EngineServer(arguments, tmp_path / "log").start()
    try:
        address = f"{url}://{server.http_url if url == 'http' else server.grpc_url}"
        with connect(address, timeout=30) as client, client.pool(2, "1MiB", "cuda") as pool:
            model = client.model("double").via(pool)
            for given in (torch.tensor(VALUES, device="cuda"), VALUES):
                for _ in range(20):
                    found: Any = model(IN=given)["OUT"]
                    assert found.is_cuda and found.tolist() == [[2, 4, 6, 8]]
            assert pool.missed < 5
    finally:
        server.stop()
