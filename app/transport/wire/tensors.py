"""Tensors within a frame, written and read.

A frame's meta describes each tensor as `[name, datatype, shape, data]`, where data says where the bytes are:

- msgpack bin: here. Small tensors only; one decode yields them with memory of their own.
- an integer: in the payload, that many bytes, behind those of the tensors before it.
- `[offset, size]`: in the sender's arena.
- `[offset, size, arena, key]`: in an arena that the sender lends from (`lending.py`).
- an extension type, which has a `RegionSlice` in msgpack: in memory that the client shares.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec.msgpack import Ext

from app.core.tensors import Buffer, RegionSlice, Tensor
from app.transport.memory.arena import ArenaReader, ArenaWriter
from app.transport.memory.lending import Borrower, Lender
from app.transport.protocol import ProtocolError
from app.transport.settings import TransportSettings
from app.transport.wire.frames import ZEROS, Frame, padded

MAX_TENSORS: Final = 16384
"""Tensors of one frame, and names of requested outputs."""
IN_META: Final = 32 << 10
"""Tensors up to this size, in bytes, are copied into the meta: below, copying costs less than a view."""
_PIN_RATIO: Final = 8
"""A view may keep alive at most this many times its own size of received memory; smaller ones are copied."""


class WireTensor(msgspec.Struct, array_like=True, gc=False):
    """A tensor as the meta describes it."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | int | Annotated[tuple[int, ...], msgspec.Meta(min_length=2, max_length=4)] | Ext


PLACE: Final = 1
"""The extension type."""
encode_place: Final = msgspec.msgpack.Encoder().encode
decode_place: Final = msgspec.msgpack.Decoder(RegionSlice).decode
WireTensors = Annotated[tuple[WireTensor, ...], msgspec.Meta(max_length=MAX_TENSORS)]
Description = tuple[str, str, tuple[int, ...], Any]
"""A `WireTensor` on its way out."""


class TensorWriter:
    """Decides where the tensors of a frame go, and copies them there."""

    def __init__(self, settings: TransportSettings, arena: ArenaWriter | None, lender: Lender | None) -> None:
        self._arena = arena
        self._lender = lender
        self._threshold = max(settings.arena_threshold, IN_META + 1)
        self._max_in_meta = settings.max_meta_bytes // 4
        self._max_payload = settings.max_frame_bytes - settings.max_meta_bytes

    def write(self, tensors: Sequence[Tensor], described: list[Description], payload: list[Buffer]) -> int:
        """Append a description of each tensor, and what goes into the payload; return the payload's size.

        Raises:
            ValueError: more tensors or bytes than a peer accepts; `described` is what `release` undoes.
        """
        if len(tensors) > MAX_TENSORS:
            raise ValueError(f"{len(tensors)} tensors are more than {MAX_TENSORS}")
        size = in_meta = 0
        for tensor in tensors:
            data = tensor.data
            nbytes = data.nbytes if type(data) is memoryview else len(data)
            if type(data) is RegionSlice:
                data = write_place(data)
            elif nbytes > IN_META or (nbytes and (in_meta := in_meta + nbytes) > self._max_in_meta):
                where = self.share(data, nbytes)
                if where is None:
                    gap = padded(size) - size
                    # As bytes, whatever the format: the transport counts a view's elements.
                    flat = memoryview(data).cast("B")
                    payload += (ZEROS[:gap], flat) if gap else (flat,)
                    size += gap + nbytes
                data = where or nbytes
            described.append((tensor.name, tensor.datatype, tensor.shape, data))
        if size > self._max_payload:
            raise ValueError(f"{size} bytes of tensors are more than {self._max_payload}")
        return size

    def share(self, data: Buffer, nbytes: int) -> tuple[int, ...] | None:
        """Lend large data that lies in shared memory, or copy it into the arena; return its place."""
        if nbytes < self._threshold:
            return None
        lent = self._lender.lend(data, nbytes) if self._lender is not None else None
        if lent is not None:
            return lent
        flat = memoryview(data).cast("B")
        slab = self._arena.allocate(nbytes) if self._arena is not None else None
        if slab is None:
            return None
        offset, target = slab
        target[:] = flat
        return offset, nbytes

    def release(self, described: Sequence[Description]) -> None:
        """Release the shared memory of a frame that is not sent after all."""
        self.unshare([data for *_, data in described if type(data) is tuple])

    def unshare(self, places: Sequence[tuple[int, ...]]) -> None:
        """Release what `share` has returned the places of."""
        for place in places:
            if len(place) == 4 and self._lender is not None:
                self._lender.released(place[3])
            elif self._arena is not None:
                self._arena.release(place[0])


def read_tensors(
    wire: tuple[WireTensor, ...], frame: Frame, arena: ArenaReader | None, borrower: Borrower | None
) -> tuple[Tensor, ...]:
    """Return the tensors of a frame; those in shared memory are views that release it when they go.

    Raises:
        ProtocolError: a tensor is not where its description says.
        msgspec.DecodeError: a place in client memory is malformed.
    """
    tensors: list[Tensor] = []
    position = 0
    for tensor in wire:
        data: Any = tensor.data
        if type(data) is bytes:
            pass
        elif type(data) is int:
            position = padded(position)
            data, position = _from_payload(frame, position, data), position + data
        elif type(data) is tuple:
            data = view_shared(data, arena, borrower)
        else:
            data = read_place(data)
        tensors.append(Tensor(tensor.name, tensor.datatype, tensor.shape, data))
    if position != len(frame.payload):
        raise ProtocolError(f"payload of {len(frame.payload)} bytes, but its tensors have {position}")
    return tuple(tensors)


def write_place(place: RegionSlice) -> Ext:
    """Return the description of a place in client memory."""
    return Ext(PLACE, encode_place(place))


def read_place(described: Ext) -> RegionSlice:
    """Return the place in client memory that `write_place` has described.

    Raises:
        ProtocolError: it is of another extension type.
        msgspec.DecodeError: it is malformed.
    """
    if described.code != PLACE:
        raise ProtocolError(f"extension type {described.code}")
    return decode_place(described.data)


def view_shared(place: tuple[int, ...], arena: ArenaReader | None, borrower: Borrower | None) -> memoryview:
    """Return a view of a tensor in shared memory, which releases it when it goes.

    Raises:
        ProtocolError: there is none at this place.
    """
    if len(place) == 2 and arena is not None:
        return arena.view(place[0], place[1])
    if len(place) == 4 and borrower is not None:
        return borrower.view(*place)
    raise ProtocolError("a tensor in shared memory on a connection that has none")


def _from_payload(frame: Frame, start: int, nbytes: int) -> Buffer:
    payload = frame.payload
    if nbytes <= 0 or start + nbytes > len(payload):
        raise ProtocolError(f"tensor of {nbytes} bytes at {start} is outside a payload of {len(payload)}")
    piece = payload[start : start + nbytes]
    if frame.owned and nbytes * _PIN_RATIO >= len(payload) + len(frame.meta):
        return piece
    return bytes(piece)
