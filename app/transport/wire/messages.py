"""What the metas of frames say: requests, responses, errors; `outbox.py` writes the first two.

The meta of a request or response is a msgpack array that ends early when the rest has default values. Each
tensor in it is `[name, datatype, shape, data]`, where data says where the bytes are:

- msgpack bin: here. Small tensors only; one decode yields them with memory of their own.
- an integer: in the payload, that many bytes, behind those of the tensors before it.
- `[offset, size]`: in the sender's arena.
- `[offset, size, arena, key]`: in an arena that the sender lends from (`lending.py`).
- a `RegionSlice`: in memory that the client shares.
"""

from typing import Annotated, Any, Final

import msgspec

from app.core.errors import Failure
from app.core.tensors import (
    Buffer,
    InferRequest,
    InferResponse,
    Parameters,
    RegionSlice,
    RequestedOutput,
    Tensor,
    Timestamps,
    TracedCall,
)
from app.transport.memory.arena import ArenaReader
from app.transport.memory.lending import Borrower
from app.transport.wire.frames import FINAL, Frame, ProtocolError, padded

_PIN_RATIO: Final = 8
"""A view may keep alive at most this many times its own size of received memory; smaller ones are copied."""

MAX_TENSORS: Final = 16384
"""Tensors of one frame, and names of requested outputs."""


class _WireTensor(msgspec.Struct, array_like=True, gc=False):
    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | int | Annotated[tuple[int, ...], msgspec.Meta(min_length=2, max_length=4)] | RegionSlice


_WireTensors = Annotated[tuple[_WireTensor, ...], msgspec.Meta(max_length=MAX_TENSORS)]
_WireOutput = str | tuple[str, RegionSlice]


class _WireRequest(msgspec.Struct, array_like=True, gc=False):
    model_name: str
    model_version: str
    inputs: _WireTensors
    outputs: Annotated[tuple[_WireOutput, ...], msgspec.Meta(max_length=MAX_TENSORS)] = ()
    id: str = ""
    parameters: Parameters = {}
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    priority: int = 0
    timeout_us: int = 0
    trace: str = ""
    regions: bool = False
    chain: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_TENSORS)] = ()


class _WireResponse(msgspec.Struct, array_like=True, gc=False):
    model_name: str
    model_version: str
    outputs: _WireTensors
    id: str = ""
    parameters: Parameters = {}
    failure: Failure | None = None
    timestamps: Timestamps | None = None
    calls: Annotated[tuple[TracedCall, ...], msgspec.Meta(max_length=MAX_TENSORS)] = ()


_decode_request = msgspec.msgpack.Decoder(_WireRequest).decode
_decode_response = msgspec.msgpack.Decoder(_WireResponse).decode

# What msgspec raises for bytes a peer made up.
UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, MemoryError, OverflowError)


def decode_request(
    frame: Frame, deadline: float, arena: ArenaReader | None, borrower: Borrower | None = None
) -> InferRequest:
    """Read an INFER frame; `deadline` is its time left, added to this process's clock.

    Raises:
        ProtocolError: the frame is malformed.
    """
    try:
        wire = _decode_request(frame.meta)
    except UNDECODABLE as error:
        raise ProtocolError(f"malformed request: {error}") from error
    return InferRequest(
        wire.model_name,
        wire.model_version,
        _tensors(wire.inputs, frame, arena, borrower),
        tuple(
            [
                RequestedOutput(o) if isinstance(o, str) else RequestedOutput(o[0], region=o[1])
                for o in wire.outputs
            ]
        ),
        wire.id,
        wire.parameters,
        wire.sequence_id,
        wire.sequence_start,
        wire.sequence_end,
        wire.priority,
        wire.timeout_us,
        deadline,
        wire.trace,
        wire.regions,
        wire.chain,
    )


def decode_response(
    frame: Frame, arena: ArenaReader | None, borrower: Borrower | None = None
) -> InferResponse:
    """Read a RESPONSE frame.

    Raises:
        ProtocolError: the frame is malformed.
    """
    try:
        wire = _decode_response(frame.meta)
    except UNDECODABLE as error:
        raise ProtocolError(f"malformed response: {error}") from error
    return InferResponse(
        wire.model_name,
        wire.model_version,
        _tensors(wire.outputs, frame, arena, borrower),
        wire.id,
        wire.parameters,
        bool(frame.flags & FINAL),
        wire.failure,
        wire.timestamps,
        wire.calls,
    )


def _tensors(
    wire: tuple[_WireTensor, ...], frame: Frame, arena: ArenaReader | None, borrower: Borrower | None
) -> tuple[Tensor, ...]:
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
            data = _shared(data, arena, borrower)
        tensors.append(Tensor(tensor.name, tensor.datatype, tensor.shape, data))
    if position != len(frame.payload):
        raise ProtocolError(f"payload of {len(frame.payload)} bytes, but its tensors have {position}")
    return tuple(tensors)


def _shared(place: tuple[int, ...], arena: ArenaReader | None, borrower: Borrower | None) -> memoryview:
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
