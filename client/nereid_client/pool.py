"""A pool of slots in shared memory, through which tensors go instead of the body of a request.

A slot is one request's. It is free again when the answer's arrays are gone, not before: nobody reads memory
that another request writes.
"""

from __future__ import annotations

import asyncio
import re
import weakref
from contextlib import suppress
from typing import Any, Final

from nereid_client.datatypes import byte_size
from nereid_client.errors import DeadlineExceeded, ServerError, Unavailable
from nereid_client.memory import HostMemory, Memory
from nereid_client.messages import Input, Output, Request, Response, Slice
from nereid_client.signature import Signature
from nereid_client.transport import Transport

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


def _memory(size: int, device: str) -> Memory:
    """Return new memory on "cpu", "cuda" or a numbered "cuda:1".

    Raises:
        ValueError: there is no such kind of device.
    """
    kind, _, number = device.partition(":")
    if device == "cpu":
        return HostMemory(size)
    if kind == "cuda" and (number.isdigit() or device == kind):
        from nereid_client.cuda import CudaMemory

        return CudaMemory(size, int(number or 0))
    raise ValueError(f"'{device}' is no device, give 'cpu', 'cuda' or e.g. 'cuda:1'")


class Lease:
    """A slot that a request has. It ends with the last view of it."""

    def __init__(self, pool: AsyncPool, number: int) -> None:
        self.start, self._used = number * pool.slot_bytes, 0
        self._memory = pool.memory
        slot, self._view = pool.memory.slot(self.start, pool.slot_bytes)
        self._end = weakref.finalize(slot, pool.give_back, number)

    def abandon(self) -> None:
        """Never use the slot again: a server that was not waited for may still write to it."""
        self._end.detach()

    def end(self) -> None:
        """Make the slot free: no array is in it, and what failed keeps the lease until it is collected."""
        self._end()

    def take(self, size: int) -> int | None:
        """Return where `size` bytes of the slot begin; None if they are not left."""
        position = -(-self._used // _ALIGNMENT) * _ALIGNMENT
        if position + size > len(self._view):
            return None
        self._used = position + size
        return position

    def write(self, position: int, data: Any) -> None:
        """Copy bytes there."""
        self._memory.write(self._view[position : position + len(data)], data)

    def array(self, position: int, size: int, datatype: str, shape: tuple[int, ...]) -> Any:
        """Return the tensor of so many bytes there, as a view."""
        return self._memory.array(self._view[position : position + size], datatype, shape)


class AsyncPool:
    """Slots of one region. Make one by `server.pool`.

    Attributes:
        memory: of the region.
        missed: calls that found no slot free, and went in the body; give the pool more slots.
        registrations: how often a server was made to know the region.
        slot_bytes: of a slot; what does not fit goes in the body.
    """

    def __init__(self, transport: Transport, slots: int, slot_bytes: int, device: str = "cpu") -> None:
        self.slot_bytes = -(-slot_bytes // _ALIGNMENT) * _ALIGNMENT
        self.memory = _memory(slots * self.slot_bytes, device)
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._free = list(range(slots))
        self.missed = self.registrations = 0
        self._registering: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def region(self) -> str:
        """The region's name at the server."""
        return self.memory.name

    async def open(self) -> None:
        """Make the server know the region; if that fails, release it."""
        try:
            await self._register()
        except BaseException:
            with suppress(ServerError):
                await self.close()
            raise

    async def close(self) -> None:
        """Make the server forget the region, and release it; arrays that are left keep their memory."""
        self._closed = True
        try:
            if self._registering is not None:  # or the server would learn of a region that is gone
                await asyncio.wait([self._registering])
            with suppress(Unavailable):  # nor does a server know it that does not run
                await self.memory.unregister(self._transport, _TIMEOUT)
        finally:
            self.memory.close()

    async def register_again(self, seen: int, timeout: float) -> None:
        """Make a server that was started anew know the region: once, for all calls that find it unknown.

        Args:
            seen: `registrations` when the call was sent; if there was one since, nothing is left to do.
            timeout: seconds that the call waits.

        Raises:
            ServerError: the server refuses, or was not reached; the region stays as it is.
        """
        if self._closed or seen != self.registrations:
            return
        if (task := self._registering) is None:
            task = self._registering = asyncio.ensure_future(self._register())
            task.add_done_callback(self._end_registration)
        if not (await asyncio.wait([task], timeout=timeout))[0]:
            raise DeadlineExceeded("DEADLINE_EXCEEDED", "there was no answer in time")
        task.result()

    def _end_registration(self, task: asyncio.Task[None]) -> None:
        self._registering = None  # its exception would keep the slots of the calls that it was raised in
        if not task.cancelled():
            task.exception()  # or asyncio complains where no call waits for it any more

    async def _register(self) -> None:
        try:
            await self.memory.register(self._transport, _TIMEOUT)
        except ServerError as error:
            # No other region has its name: this one was registered by a call whose answer did not arrive.
            if error.code != "ALREADY_EXISTS" and "already in manager" not in error.message:
                raise
        self.registrations += 1

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
        lease.write(position, entry.data)
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
        arrays[name] = lease.array(place.offset - lease.start, size, datatype, shape)
    return arrays
