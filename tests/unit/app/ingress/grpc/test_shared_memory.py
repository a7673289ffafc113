"""The shared memory RPCs over a registry of regions."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tritonclient.grpc import service_pb2 as pb

from app.ingress.client_memory.registry import SharedMemory
from app.ingress.grpc.shared_memory import shared_memory_rpcs
from app.ingress.service.interface import InferenceService
from app.transport.memory.cuda_memory import HANDLE_BYTES


class Rpcs:
    def __init__(self, memory: SharedMemory) -> None:
        self._rpcs = shared_memory_rpcs(cast(InferenceService, SimpleNamespace(shared_memory=memory)))

    async def call(self, rpc: str, **fields: Any) -> Any:
        registered = self._rpcs[rpc]
        return await registered.handler(registered.request_class(**fields))


@pytest.fixture
def rpcs(tmp_path: Path) -> Rpcs:
    return Rpcs(SharedMemory(str(tmp_path / "regions"), gpus=2))


async def test_cuda_regions_are_registered_listed_and_unregistered(rpcs: Rpcs) -> None:
    given = {"name": "g", "device_id": 1, "byte_size": 16}
    registered = await rpcs.call("CudaSharedMemoryRegister", raw_handle=bytes(HANDLE_BYTES), **given)
    assert registered == pb.CudaSharedMemoryRegisterResponse()
    response = await rpcs.call("CudaSharedMemoryStatus", name="g")
    assert response == pb.CudaSharedMemoryStatusResponse(regions={"g": given})
    assert await rpcs.call("CudaSharedMemoryUnregister") == pb.CudaSharedMemoryUnregisterResponse()
    assert not (await rpcs.call("CudaSharedMemoryStatus")).regions
