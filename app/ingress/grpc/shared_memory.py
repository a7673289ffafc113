"""Shared memory RPCs of `inference.GRPCInferenceService`: three for each kind of memory."""

from typing import Any

from tritonclient.grpc import service_pb2 as pb

from app.ingress.grpc.rpc import Rpc
from app.ingress.service.interface import InferenceService


def shared_memory_rpcs(service: InferenceService) -> dict[str, Rpc]:
    """Return the RPCs by method name."""
    found: dict[str, Rpc] = {}
    for cuda in (False, True):
        rpcs = _SharedMemoryRpcs(service, cuda)
        handlers = {"Status": rpcs.status, "Register": rpcs.register, "Unregister": rpcs.unregister}
        for verb, handler in handlers.items():
            action = "" if verb == "Status" else f"{verb.lower()}-{'cuda' if cuda else 'system'}-memory"
            message = rpcs.message(f"{verb}Request")
            found[f"{rpcs.prefix}{verb}"] = Rpc(
                "shared-memory", handler, message, region="name", action=action
            )
    return found


class _SharedMemoryRpcs:
    """The RPCs of one kind of memory, with equally named message classes."""

    def __init__(self, service: InferenceService, cuda: bool) -> None:
        self._service = service
        self._cuda = cuda
        self.prefix = "CudaSharedMemory" if cuda else "SystemSharedMemory"

    def message(self, name: str) -> Any:
        """Return the message class of this kind with a name suffix."""
        return getattr(pb, self.prefix + name)

    async def status(self, message: Any) -> Any:
        response = self.message("StatusResponse")()
        for region in self._service.shared_memory.status(message.name, self._cuda):
            entry = response.regions[region.name]
            for field in entry.DESCRIPTOR.fields_by_name:
                setattr(entry, field, getattr(region, field))
        return response

    async def register(self, message: Any) -> Any:
        memory = self._service.shared_memory
        if self._cuda:
            memory.register_cuda(message.name, message.raw_handle, message.device_id, message.byte_size)
        else:
            memory.register_system(message.name, message.key, message.offset, message.byte_size)
        return self.message("RegisterResponse")()

    async def unregister(self, message: Any) -> Any:
        self._service.shared_memory.unregister(message.name, self._cuda)
        return self.message("UnregisterResponse")()
