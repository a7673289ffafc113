"""A pool of slots in shared memory, through which tensors go instead of the body of a request.

A slot is one request's. It is free again when the answer's arrays are gone, not before: nobody reads memory
that another request writes. The region is unlinked when the pool is closed, and if its process is killed.
"""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import os
import re
import weakref
from multiprocessing import resource_tracker
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

from nereid_client.datatypes import byte_size, decode
from nereid_client.messages import Input, Output, Request, Response, Slice
from nereid_client.signature import Signature
from nereid_client.transport import Transport

_DIRECTORY: Final = Path("/dev/shm")
"""Where Linux keeps POSIX shared memory."""
_ALIGNMENT: Final = 64
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_TIMEOUT: Final = 30.0
"""Seconds for the server to learn of the region, or forget it."""


def read_size(size: int | str) -> int:
    """Return a number of bytes, given as one or as "4MiB".

    Raises:
        ValueError: it is none.
    """
    found = re.fullmatch(r"\s*(\d+)\s*(?:([kmg]?)i?b)?\s*", str(size), re.IGNORECASE)
    if found is None or not int(found[1]):
        raise ValueError(f"'{size}' is no size, give bytes or e.g. '4MiB'")
    return int(found[1]) * _UNITS[(found[2] or "").lower()]


def _create(name: str, size: int) -> mmap.mmap:
    """Return new shared memory, which is unlinked when this process is killed."""
    path = _DIRECTORY / name
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        resource_tracker.register(f"/{name}", "shared_memory")
        os.posix_fallocate(file, 0, size)  # fails here, not with a signal when it is written to
        return mmap.mmap(file, size)
    except BaseException:
        _unlink(name)
        raise
    finally:
        os.close(file)


def _unlink(name: str) -> None:
    (_DIRECTORY / name).unlink(missing_ok=True)
    resource_tracker.unregister(f"/{name}", "shared_memory")


class Lease:
    """A slot that a request has. It ends with the last view of `memory`."""

    def __init__(self, pool: AsyncPool, number: int) -> None:
        self.start, self._used = number * pool.slot_bytes, 0
        # Views of a ctypes object keep it; those of a memoryview keep only what is below.
        slot = pool.slot_type.from_buffer(pool.memory, self.start)
        self._end = weakref.finalize(slot, pool.give_back, number)
        self.memory = memoryview(slot).cast("B")

    def abandon(self) -> None:
        """Never use the slot again: a server that was not waited for may still write to it."""
        self._end.detach()

    def take(self, size: int) -> int | None:
        """Return where `size` bytes of the slot begin; None if they are not left."""
        position = -(-self._used // _ALIGNMENT) * _ALIGNMENT
        if position + size > len(self.memory):
            return None
        self._used = position + size
        return position


class AsyncPool:
    """Slots of one region. Make one by `server.pool`.

    Attributes:
        region: its name at the server.
        memory: of the region.
        missed: calls that found no slot free, and went in the body; give the pool more slots.
        slot_bytes: of a slot; what does not fit goes in the body.
    """

    def __init__(self, transport: Transport, slots: int, slot_bytes: int) -> None:
        self.slot_bytes = -(-slot_bytes // _ALIGNMENT) * _ALIGNMENT
        self.region = f"nereid-{token_hex(8)}"
        self.slot_type: Any = type("Slot", (ctypes.c_char * self.slot_bytes,), {})
        self.memory = _create(self.region, slots * self.slot_bytes)
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._free = list(range(slots))
        self.missed = 0

    async def open(self) -> None:
        """Make the server know the region."""
        await self._transport.register(self.region, f"/{self.region}", len(self.memory), _TIMEOUT)

    async def close(self) -> None:
        """Make the server forget the region, and unlink it; arrays that are left keep their memory."""
        try:
            await self._transport.unregister(self.region, _TIMEOUT)
        finally:
            _unlink(self.region)

    def lease(self) -> Lease | None:
        """Return a free slot; None if there is none.

        Nobody waits for one: who keeps a result while the next call runs would wait for himself.
        """
        if not self._free:
            self.missed += 1
            return None
        return Lease(self, self._free.pop())

    def give_back(self, number: int) -> None:
        """Make a slot free, from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._free.append, number)
        except RuntimeError:  # the loop is closed, and the pool of no use any more
            pass


def through(lease: Lease, pool: AsyncPool, request: Request, signature: Signature) -> Request:
    """Return the request with what fits into the slot there: inputs, and outputs whose size is known."""
    inputs = []
    for entry in request.inputs:
        position = None if isinstance(entry.data, Slice) else lease.take(len(entry.data))
        if position is None or isinstance(entry.data, Slice):
            inputs.append(entry)
            continue
        size = len(entry.data)
        lease.memory[position : position + size] = entry.data
        place = Slice(pool.region, lease.start + position, size)
        inputs.append(Input(entry.name, entry.datatype, entry.shape, place))
    rows = request.inputs[0].shape[0] if signature.batched and request.inputs else 0
    names = [output.name for output in request.outputs] or list(signature.outputs)
    wanted = {output.name: output for output in request.outputs}
    outputs = [_placed(lease, pool, wanted.get(name, Output(name)), signature, rows) for name in names]
    return Request(
        request.model, request.version, tuple(inputs), tuple(outputs), request.id, request.parameters
    )


def _placed(lease: Lease, pool: AsyncPool, output: Output, signature: Signature, rows: int) -> Output:
    spec = signature.outputs.get(output.name)
    if spec is None or output.classes:
        return output
    shape = (rows, *spec.shape[1:]) if signature.batched else spec.shape
    size = byte_size(spec.datatype, shape)
    position = None if not size else lease.take(size)
    if position is None or size is None:
        return output
    return Output(output.name, 0, Slice(pool.region, lease.start + position, size))


def placed_arrays(lease: Lease, request: Request, response: Response) -> dict[str, Any]:
    """Return the outputs that the server has put into the slot, as views of it."""
    places = {output.name: output.place for output in request.outputs}
    arrays = {}
    for name, (datatype, shape) in response.placed.items():
        place, size = places[name], byte_size(datatype, shape)
        if place is None or size is None or size > place.size:
            raise ValueError(f"the server has put output '{name}' where it does not fit")
        start = place.offset - lease.start
        arrays[name] = decode(lease.memory[start : start + size], datatype, shape)
    return arrays
