"""Reads and writes the memory that clients share, in the process that executes the request.

A frame says where a tensor is; the replica on the client's node reads an input from there into memory of its
own, and writes an output there straight from the backend's memory. Nothing passes through the ingress, unless
the replica is on another node: then the ingress reads and writes, and the frame carries the bytes.

The client's file can be shortened at any moment, and a POSIX shared memory object cannot be sealed against
that: the next access to a mapping of it is a SIGBUS, and within numpy or a framework nothing could catch it.
Nor may a model see bytes that the client still changes: the lengths within a BYTES tensor were checked. So
inputs are copied, always, and no view of client memory leaves this folder.

There are two ways to copy. A file is mapped once and copied by code that a SIGBUS ends
(`mapped_regions.py`), where that is compiled. Otherwise, the first time, and whenever that finds something
wrong, it is opened, and read or written by `preadv` and `pwritev`, which only return fewer bytes behind its
end: so the errors are the same. The price of the second way for 600 KB: 29 us to read and 40 to write where
mapped copies take 8.
"""

import asyncio
import os
import stat
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from app.core.buffers import allocate_private
from app.core.errors import InferError, internal, invalid_arg
from app.core.inference import Sink
from app.core.tensors import Buffer, InferRequest, InferResponse, RegionSlice, Tensor, failed
from app.transport.memory import cuda_memory

if TYPE_CHECKING:
    from app.transport.memory.mapped_regions import MappedRegions

SHM_DIRECTORY: Final = "/dev/shm"
MAX_INPUT_BYTES: Final = 2 << 30
"""Limit of one request's inputs in shared memory: about as much as a frame carries."""


class _Mapped(threading.local):
    """The mapped files of this thread's loop: a process may have several data planes, at once or in turn."""

    regions: "MappedRegions | None" = None


_mapped: Final = _Mapped()


def use_mappings() -> None:
    """Copy by mapped files from now on, on this loop of a native process (`app/native/choice.py`)."""
    from app.transport.memory.mapped_regions import MappedRegions

    _mapped.regions = MappedRegions(lambda place: _open(place)[0], asyncio.get_running_loop().call_later)


def open_key(key: str) -> int:
    """Open a POSIX shared memory object for reading and writing.

    Raises:
        InferError: INTERNAL when it cannot be opened or is no ordinary file.
    """
    return _open_file(key)[0]


def _open_file(key: str) -> tuple[int, os.stat_result]:
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(f"{SHM_DIRECTORY}/{key.lstrip('/')}", flags)
    except (OSError, ValueError):
        raise _cannot_open(key) from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise _cannot_open(key)
    return descriptor, status


def _cannot_open(key: str) -> InferError:
    return internal(f"Unable to open shared memory region: '{key}'")


def beyond_end(region: str) -> InferError:
    """Return the error of a slice that is not within its region."""
    return invalid_arg(f"Invalid offset + byte size for shared memory region: '{region}'")


def read_inputs(request: InferRequest) -> InferRequest:
    """Return the request with inputs in shared memory replaced by their bytes.

    Raises:
        InferError: INVALID_ARG when a region has become shorter than registered or the inputs are too large,
            INTERNAL when it is gone.
    """
    slices = [tensor.data for tensor in request.inputs if type(tensor.data) is RegionSlice]
    size = sum(map(len, slices))
    if size > MAX_INPUT_BYTES:
        raise invalid_arg(f"{size} bytes of inputs in shared memory are more than {MAX_INPUT_BYTES}")
    inputs = tuple(
        [
            Tensor(tensor.name, tensor.datatype, tensor.shape, read_slice(tensor.data))
            if type(tensor.data) is RegionSlice
            else tensor
            for tensor in request.inputs
        ]
    )
    return msgspec.structs.replace(request, inputs=inputs)


def write_outputs(request: InferRequest, response: InferResponse) -> InferResponse:
    """Write outputs to the regions that the request names; they stay in the response, without data.

    Returns:
        The response, or a failed one: INTERNAL when an output does not fit or the region is gone,
        INVALID_ARG when the region has become shorter than registered.
    """
    if response.failure is not None:
        return response
    places = {output.name: output.region for output in request.outputs if output.region is not None}
    try:
        outputs = tuple([_written(tensor, places.get(tensor.name)) for tensor in response.outputs])
    except InferError as error:
        return failed(error, request.id, response.final)
    return msgspec.structs.replace(response, outputs=outputs)


def with_inlined_regions(request: InferRequest, sink: Sink) -> tuple[InferRequest, Sink]:
    """Read the inputs, and write the outputs of the responses, for a replica on another node.

    Raises:
        InferError: as `read_inputs`.
    """
    request = read_inputs(request)
    plain = tuple(msgspec.structs.replace(output, region=None) for output in request.outputs)
    sent = msgspec.structs.replace(request, outputs=plain, regions=False)
    return sent, lambda response: sink(write_outputs(request, response))


def read_slice(place: RegionSlice) -> Buffer:
    """Return a copy of a part of a client's memory.

    Raises:
        InferError: INVALID_ARG when the region has become shorter than registered, INTERNAL when it is gone.
    """
    if not place.nbytes:
        return b""
    if place.handle:
        return cuda_memory.read(place)
    block = allocate_private(place.nbytes)
    if (mapped := _mapped.regions) is not None and mapped.read(place, block):
        return block
    descriptor, size = _open(place)
    try:
        if place.offset + place.nbytes > size:
            raise beyond_end(place.region)
        _transfer(os.preadv, descriptor, block, place)
    finally:
        os.close(descriptor)
    return block


def _written(tensor: Tensor, place: RegionSlice | None) -> Tensor:
    if place is None:
        return tensor
    data = memoryview(tensor.data).cast("B")
    if len(data) > place.nbytes:
        raise internal(
            f"shared memory size specified with the request for output '{tensor.name}' "
            f"({place.nbytes} bytes) should be at least {len(data)} bytes to hold the results"
        )
    if data.nbytes:
        _write(place, data)
    return Tensor(tensor.name, tensor.datatype, tensor.shape, b"")


def _write(place: RegionSlice, data: memoryview) -> None:
    if place.handle:
        cuda_memory.write(place, data)
        return
    if (mapped := _mapped.regions) is not None and mapped.write(place, data):
        return
    descriptor, size = _open(place)
    try:
        # A write behind the end would make the file longer again.
        if place.offset + len(data) > size:
            raise beyond_end(place.region)
        _transfer(os.pwritev, descriptor, data, place)
    finally:
        os.close(descriptor)


def _open(place: RegionSlice) -> tuple[int, int]:
    """Open the registered file, not a later one of the same name; return its descriptor and size."""
    descriptor, status = _open_file(place.key)
    if status.st_ino != place.inode:
        os.close(descriptor)
        raise _cannot_open(place.key)
    return descriptor, status.st_size


def _transfer(
    transfer: Callable[[int, Any, int], int], descriptor: int, data: memoryview, place: RegionSlice
) -> None:
    """Transfer all of `data`; the kernel moves 2 GiB a call at most, and less at the end of the file."""
    done = 0
    while done < len(data):
        try:
            moved = transfer(descriptor, [data[done:]], place.offset + done)
        except OSError as error:  # no memory left for the pages of a sparse file, say
            raise internal(f"shared memory region '{place.region}': {error.strerror}") from error
        if not moved:
            raise beyond_end(place.region)
        done += moved
