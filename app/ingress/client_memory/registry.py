"""The memory that clients have registered, and requests that use it.

A region belongs to a node: the same key on another node is other memory. `region_files.py` keeps them.
"""

import os
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from app.core.errors import InferError, invalid_arg, not_found, unsupported
from app.core.inference import Sink
from app.core.tensors import InferRequest, InferResponse, RegionSlice
from app.ingress.client_memory.region_files import Region, RegionFiles, in_manager
from app.transport.memory.client_regions import beyond_end, open_key
from app.transport.memory.cuda_memory import HANDLE_BYTES, device_count

DISABLED: Final = (
    "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
)
RESERVED_PREFIX: Final = "triton_python_backend_shm_region_"
_MAX_KEY: Final = 255
_SIZE_MAX: Final = (1 << 64) - 1

_Call = TypeVar("_Call")


class _Use:
    """A region that requests of this process use, and the descriptor that holds it."""

    def __init__(self, region: Region, descriptor: int) -> None:
        self.region = region
        self.descriptor = descriptor
        self.requests = 0


class SharedMemory:
    """The regions of this node. For the data-plane loop; each call takes some microseconds of file system."""

    def __init__(self, directory: str, enabled: bool = True, gpus: int | None = None) -> None:
        """Use `directory`, which all ingress replicas of the server on this node share; made when needed."""
        self._files = RegionFiles(directory)
        self._enabled = enabled
        self._gpus = device_count() if gpus is None else gpus
        self._uses: dict[str, _Use] = {}

    def register_system(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Register `byte_size` bytes from `offset` of a POSIX shared memory object.

        Raises:
            InferError: UNSUPPORTED when this is switched off, INVALID_ARG for a key or range that cannot be,
                ALREADY_EXISTS for a name in use, INTERNAL when there is no such object.
        """
        self.check_name(name, cuda=False)
        _check_key(name, key)
        self._check_new(name)
        descriptor = open_key(key)
        status = os.fstat(descriptor)
        os.close(descriptor)
        if byte_size <= 0 or offset + byte_size > status.st_size:
            raise invalid_arg(f"failed to register shared memory region '{name}': invalid args")
        self._files.add(Region(name, byte_size, key, offset, status.st_ino))

    def register_cuda(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        """Register GPU memory by the bytes of its cudaIpcMemHandle_t; a replica opens it when it is used.

        Raises:
            InferError: as `register_system`; INVALID_ARG where there is no such GPU.
        """
        self.check_name(name, cuda=True)
        if not self._gpus:
            raise invalid_arg(f"failed to register CUDA shared memory region: '{name}', GPUs not supported")
        self._check_new(name)
        if len(handle) != HANDLE_BYTES or byte_size <= 0 or not 0 <= device_id < self._gpus:
            raise invalid_arg(f"failed to register CUDA shared memory region '{name}': invalid args")
        self._files.add(Region(name, byte_size, handle=handle, device_id=device_id))

    def check_name(self, name: str, cuda: bool) -> None:
        """Refuse to register under no name, or at all: what is checked before anything else of a request.

        Raises:
            InferError: UNSUPPORTED, INVALID_ARG.
        """
        self._check_enabled()
        if not name:
            raise invalid_arg(f"'region name' is necessary to register {_kind(cuda)} shared memory region")

    def unregister(self, name: str, cuda: bool) -> None:
        """Forget a region, or with "" all of a kind, once no request uses it; unknown names are no error.

        Raises:
            InferError: UNSUPPORTED when this is switched off.
        """
        self._check_enabled()
        for region in self._files.regions(name):
            if region.cuda == cuda:
                self._files.withdraw(region.name)

    def status(self, name: str, cuda: bool) -> list[Region]:
        """The region of that name, or with "" all of a kind, by name.

        Raises:
            InferError: NOT_FOUND for an unknown name.
        """
        found = [region for region in self._files.regions(name) if region.cuda == cuda]
        if name and not found:
            raise not_found(f"Unable to find {_kind(cuda)} shared memory region: '{name}'")
        return sorted(found, key=lambda region: region.name)

    def submit(self, send: Callable[[InferRequest, Sink], _Call], request: InferRequest, sink: Sink) -> _Call:
        """Send a request with every slice of a region replaced by its place; the regions stay until it ends.

        Raises:
            InferError: NOT_FOUND for an unknown region, INVALID_ARG for a slice outside of it; what `send`
                raises.
        """
        used: list[_Use] = []
        try:
            placed = self._placed(request, used)

            def finish(response: InferResponse) -> None:
                if response.final:
                    self._release(used)
                sink(response)

            return send(placed, finish)
        except BaseException:
            self._release(used)
            raise

    def close(self) -> None:
        """Remove the directory, if it is empty."""
        self._files.close()

    def _placed(self, request: InferRequest, used: list[_Use]) -> InferRequest:
        inputs = tuple(
            [
                msgspec.structs.replace(tensor, data=self._place(tensor.data, used))
                if type(tensor.data) is RegionSlice
                else tensor
                for tensor in request.inputs
            ]
        )
        outputs = tuple(
            [
                output
                if output.region is None
                else msgspec.structs.replace(output, region=self._place(output.region, used))
                for output in request.outputs
            ]
        )
        return msgspec.structs.replace(request, inputs=inputs, outputs=outputs)

    def _place(self, part: RegionSlice, used: list[_Use]) -> RegionSlice:
        use = self._use(part.region)
        used.append(use)
        region = use.region
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

    def _use(self, name: str) -> _Use:
        use = self._uses.get(name)
        if use is None:
            use = self._uses[name] = _Use(*self._files.hold(name))
        use.requests += 1
        return use

    def _release(self, used: list[_Use]) -> None:
        while used:
            use = used.pop()
            use.requests -= 1
            if not use.requests:
                del self._uses[use.region.name]
                self._files.release(use.region, use.descriptor)

    def _check_enabled(self) -> None:
        if not self._enabled:
            raise unsupported(DISABLED)

    def _check_new(self, name: str) -> None:
        if any(self._files.regions(name)):
            raise in_manager(name)


def _kind(cuda: bool) -> str:
    return "cuda" if cuda else "system"


def _overflow(part: RegionSlice) -> InferError:
    return invalid_arg(
        f"Integer overflow detected: byte_size ({part.nbytes}) + offset ({part.offset}) exceeds maximum "
        f"value ({_SIZE_MAX}) for region '{part.region}'"
    )


def _check_key(name: str, key: str) -> None:
    """Refuse what leads out of /dev/shm and what belongs to Python models of a server.

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
