"""Registers shared memory of clients, and resolves the slices that requests refer to.

A region belongs to a node: the same key on another node is other memory. `region_files.py` stores them.
"""

import logging
import os
from collections.abc import Callable
from typing import Final

import msgspec

from app.core.errors import ErrorCode, InferError, invalid_arg, not_found, unsupported
from app.core.inference import Call, Sink, Target
from app.core.tensors import InferRequest, InferResponse, RegionSlice
from app.ingress.client_memory.region_files import Region, RegionFiles, already_registered
from app.transport.memory.client_regions import beyond_end, open_key
from app.transport.memory.cuda_memory import HANDLE_BYTES as HANDLE_BYTES
from app.transport.memory.cuda_memory import device_count

logger = logging.getLogger(__name__)

DISABLED: Final = (
    "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
)
RESERVED_PREFIX: Final = "triton_python_backend_shm_region_"
_MAX_KEY: Final = 255
_SIZE_MAX: Final = (1 << 64) - 1


class _Lease:
    """A region used by requests of this process, and the descriptor with its lock."""

    def __init__(self, region: Region, descriptor: int) -> None:
        self.region = region
        self.descriptor = descriptor
        self.requests = 0


class SharedMemory:
    """The shared memory regions of this node. Runs on the data-plane loop."""

    def __init__(
        self,
        directory: str,
        enabled: bool = True,
        gpus: int | None = None,
        client: Callable[[], str] = str,
    ) -> None:
        """Use `directory`, which all ingress replicas of this node share; it is created when needed.

        Args:
            directory: where the regions are stored.
            enabled: `--allow-client-shm`.
            gpus: the number of GPUs; None counts them.
            client: returns the client that is being answered, if it has the regions alone that it has
                registered; "" for one that has all. Requests may use any region whose name they know.
        """
        self._files = RegionFiles(directory)
        self._enabled = enabled
        self._gpus = device_count() if gpus is None else gpus
        self._client = client
        self._leases: dict[str, _Lease] = {}

    def register_system(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Register `byte_size` bytes from `offset` of a POSIX shared memory object.

        Raises:
            InferError: UNSUPPORTED when client shared memory is disabled, INVALID_ARG for an invalid key or
                range, ALREADY_EXISTS for a name in use, INTERNAL when there is no such object.
        """
        self.check_name(name, cuda=False)
        _check_key(name, key)
        self._check_new(name)
        descriptor = open_key(key)
        status = os.fstat(descriptor)
        os.close(descriptor)
        if byte_size <= 0 or offset + byte_size > status.st_size:
            raise invalid_arg(f"failed to register shared memory region '{name}': invalid args")
        self._files.add(Region(name, byte_size, key, offset, status.st_ino, owner=self._client()))

    def register_cuda(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        """Register GPU memory by the bytes of its cudaIpcMemHandle_t; replicas open it on use.

        Raises:
            InferError: as `register_system`; INVALID_ARG where there is no such GPU, which the log says.
        """
        self._check_enabled()
        self._check_new(name)
        if len(handle) != HANDLE_BYTES or byte_size <= 0 or not 0 <= device_id < self._gpus:
            there = f"bytes {byte_size}, handle of {len(handle)} bytes, device {device_id} of {self._gpus}"
            logger.error("failed to register CUDA shared memory region '%s': %s", name, there)
            raise invalid_arg("failed to register shared memory region: invalid args")
        self.check_name(name, cuda=True)
        region = Region(name, byte_size, handle=handle, device_id=device_id, owner=self._client())
        self._files.add(region)

    def check_name(self, name: str, cuda: bool) -> None:
        """Check a name before the rest of a registration is read.

        Raises:
            InferError: UNSUPPORTED when client shared memory is disabled, INVALID_ARG for an empty name.
        """
        self._check_enabled()
        if not name:
            raise invalid_arg(f"'region name' is necessary to register {_kind(cuda)} shared memory region")

    def unregister(self, name: str, cuda: bool) -> None:
        """Unregister a region, or with "" all of a kind, as soon as no request uses it; ignore unknown names.

        Raises:
            InferError: UNSUPPORTED when client shared memory is disabled, PERMISSION_DENIED for a region of
                another client.
        """
        self._check_enabled()
        for region in self._files.regions(name):
            if region.cuda == cuda and self._is_of_client(region):
                self._files.unregister(region.name)
            elif region.cuda == cuda and name:
                text = f"the shared memory region '{name}' was registered by another client"
                raise InferError(ErrorCode.PERMISSION_DENIED, text)

    def _is_of_client(self, region: Region) -> bool:
        return self._client() in ("", region.owner)

    def status(self, name: str, cuda: bool) -> list[Region]:
        """Return the region of that name, or with "" all of a kind, sorted by name.

        Raises:
            InferError: NOT_FOUND for an unknown name.
        """
        regions = self._files.regions(name)
        found = [region for region in regions if region.cuda == cuda and self._is_of_client(region)]
        if name and not found:
            raise not_found(f"Unable to find {_kind(cuda)} shared memory region: '{name}'")
        return sorted(found, key=lambda region: region.name)

    def send(self, target: Target, request: InferRequest, sink: Sink) -> Call:
        """Submit a request with its region slices resolved; its regions exist until the final response.

        Raises:
            InferError: NOT_FOUND for an unknown region, INVALID_ARG for a slice outside its region, or the
                error of `target`.
        """
        leases: list[_Lease] = []
        try:
            resolved = self._resolve_request(request, leases)

            def deliver(response: InferResponse) -> None:
                if response.final:
                    self._release(leases)
                sink(response)

            return target.submit(resolved, deliver)
        except BaseException:
            self._release(leases)
            raise

    def close(self) -> None:
        """Remove the directory, if it is empty."""
        self._files.close()

    def _resolve_request(self, request: InferRequest, leases: list[_Lease]) -> InferRequest:
        inputs = tuple(
            [
                msgspec.structs.replace(tensor, data=self._resolve(tensor.data, leases))
                if type(tensor.data) is RegionSlice
                else tensor
                for tensor in request.inputs
            ]
        )
        outputs = tuple(
            [
                output
                if output.region is None
                else msgspec.structs.replace(output, region=self._resolve(output.region, leases))
                for output in request.outputs
            ]
        )
        return msgspec.structs.replace(request, inputs=inputs, outputs=outputs)

    def _resolve(self, part: RegionSlice, leases: list[_Lease]) -> RegionSlice:
        lease = self._acquire(part.region)
        leases.append(lease)
        region = lease.region
        if part.offset >= region.byte_size:
            raise invalid_arg(f"Invalid offset for shared memory region: '{part.region}'")
        if part.offset + part.nbytes > region.byte_size:
            raise _overflow(part) if part.offset + part.nbytes > _SIZE_MAX else beyond_end(part.region)
        return RegionSlice(
            part.region,
            region.offset + part.offset,
            part.nbytes,
            region.key,
            region.inode,
            region.handle,
            region.device_id,
        )

    def _acquire(self, name: str) -> _Lease:
        lease = self._leases.get(name)
        if lease is None:
            lease = self._leases[name] = _Lease(*self._files.acquire(name))
        lease.requests += 1
        return lease

    def _release(self, leases: list[_Lease]) -> None:
        while leases:
            lease = leases.pop()
            lease.requests -= 1
            if not lease.requests:
                del self._leases[lease.region.name]
                self._files.release(lease.region, lease.descriptor)

    def _check_enabled(self) -> None:
        if not self._enabled:
            raise unsupported(DISABLED)

    def _check_new(self, name: str) -> None:
        if any(self._files.regions(name)):
            raise already_registered(name)


def _kind(cuda: bool) -> str:
    return "cuda" if cuda else "system"


def _overflow(part: RegionSlice) -> InferError:
    return invalid_arg(
        f"Integer overflow detected: byte_size ({part.nbytes}) + offset ({part.offset}) exceeds maximum "
        f"value ({_SIZE_MAX}) for region '{part.region}'"
    )


def _check_key(name: str, key: str) -> None:
    """Refuse keys that lead out of /dev/shm or belong to a server's Python models.

    Raises:
        InferError: INVALID_ARG.
    """
    text = f"cannot register shared memory region '{name}'"
    bare = key.lstrip("/")
    if bare.startswith(RESERVED_PREFIX):
        raise invalid_arg(
            f"{text} with key '{key}' as the key contains the reserved prefix '{RESERVED_PREFIX}'"
        )
    if bare in ("", ".", "..") or "/" in bare or "\0" in bare or len(bare.encode()) > _MAX_KEY:
        raise invalid_arg(f"{text} - invalid shm key '{key}'")
