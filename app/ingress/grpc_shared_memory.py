"""The shared memory RPCs of `inference.GRPCInferenceService`."""

from collections.abc import Awaitable, Callable
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from app.ingress.service import InferenceService

Rpc = tuple[Callable[[Any], Awaitable[Any]], Any]


def shared_memory_rpcs(service: InferenceService) -> dict[str, Rpc]:
    """Handler and request class by method name."""
    rpcs = _SharedMemoryRpcs(service)
    return {
        "SystemSharedMemoryStatus": (rpcs.system_status, pb.SystemSharedMemoryStatusRequest),
        "SystemSharedMemoryRegister": (rpcs.register_system, pb.SystemSharedMemoryRegisterRequest),
        "SystemSharedMemoryUnregister": (rpcs.unregister_system, pb.SystemSharedMemoryUnregisterRequest),
        "CudaSharedMemoryStatus": (rpcs.cuda_status, pb.CudaSharedMemoryStatusRequest),
        "CudaSharedMemoryRegister": (rpcs.register_cuda, pb.CudaSharedMemoryRegisterRequest),
        "CudaSharedMemoryUnregister": (rpcs.unregister_cuda, pb.CudaSharedMemoryUnregisterRequest),
    }


class _SharedMemoryRpcs:
    def __init__(self, service: InferenceService) -> None:
        self._service = service

    async def system_status(
        self, message: pb.SystemSharedMemoryStatusRequest
    ) -> pb.SystemSharedMemoryStatusResponse:
        response = pb.SystemSharedMemoryStatusResponse()
        for region in self._service.shared_memory.status(message.name, cuda=False):
            entry = response.regions[region.name]
            entry.name, entry.key = region.name, region.key
            entry.offset, entry.byte_size = region.offset, region.byte_size
        return response

    async def register_system(
        self, message: pb.SystemSharedMemoryRegisterRequest
    ) -> pb.SystemSharedMemoryRegisterResponse:
        self._service.shared_memory.register_system(
            message.name, message.key, message.offset, message.byte_size
        )
        return pb.SystemSharedMemoryRegisterResponse()

    async def unregister_system(
        self, message: pb.SystemSharedMemoryUnregisterRequest
    ) -> pb.SystemSharedMemoryUnregisterResponse:
        self._service.shared_memory.unregister(message.name, cuda=False)
        return pb.SystemSharedMemoryUnregisterResponse()

    async def cuda_status(
        self, message: pb.CudaSharedMemoryStatusRequest
    ) -> pb.CudaSharedMemoryStatusResponse:
        response = pb.CudaSharedMemoryStatusResponse()
        for region in self._service.shared_memory.status(message.name, cuda=True):
            entry = response.regions[region.name]
            entry.name, entry.device_id = region.name, region.device_id
            entry.byte_size = region.byte_size
        return response

    async def register_cuda(
        self, message: pb.CudaSharedMemoryRegisterRequest
    ) -> pb.CudaSharedMemoryRegisterResponse:
        self._service.shared_memory.register_cuda(
            message.name, message.raw_handle, message.device_id, message.byte_size
        )
        return pb.CudaSharedMemoryRegisterResponse()

    async def unregister_cuda(
        self, message: pb.CudaSharedMemoryUnregisterRequest
    ) -> pb.CudaSharedMemoryUnregisterResponse:
        self._service.shared_memory.unregister(message.name, cuda=True)
        return pb.CudaSharedMemoryUnregisterResponse()
