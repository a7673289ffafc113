"""What the metas of frames say: requests, responses, errors, controls; `Outbox` writes the first two.

The meta of a request or response is a msgpack array that ends early when the rest has default values. Each
tensor in it is `[name, datatype, shape, data]`, where data says where the bytes are:

- msgpack bin: here. Small tensors only; one decode yields them with memory of their own.
- an integer: in the payload, that many bytes, behind those of the tensors before it.
- `[offset, size]`: in the sender's arena.
- a `RegionSlice`: in memory that the client shares.
"""

from typing import Annotated, Any, Final

import msgspec

from app.core.errors import ErrorCode, FailureReason, InferError
from app.core.tensors import (
    Buffer,
    InferRequest,
    InferResponse,
    Parameters,
    RegionSlice,
    RequestedOutput,
    Tensor,
    Timestamps,
)
from app.transport.arena import ArenaReader
from app.transport.frames import FINAL, Frame, ProtocolError, padded

_PIN_RATIO: Final = 8
"""A view may keep alive at most this many times its own size of received memory; smaller ones are copied."""

MAX_TENSORS: Final = 16384
"""Tensors of one frame, and names of requested outputs."""


class _WireTensor(msgspec.Struct, array_like=True, gc=False):
    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | int | tuple[int, int] | RegionSlice


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


class _WireError(msgspec.Struct, array_like=True, gc=False):
    code: ErrorCode
    message: str
    reason: FailureReason


class _WireResponse(msgspec.Struct, array_like=True, gc=False):
    model_name: str
    model_version: str
    outputs: _WireTensors
    id: str = ""
    parameters: Parameters = {}
    error: _WireError | None = None
    timestamps: Timestamps | None = None


class _WireControl(msgspec.Struct, array_like=True):
    verb: str
    argument: Any = None


_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(_WireRequest).decode
_decode_response = msgspec.msgpack.Decoder(_WireResponse).decode
_decode_error = msgspec.msgpack.Decoder(_WireError).decode
_decode_control = msgspec.msgpack.Decoder(_WireControl).decode
_decode_any = msgspec.msgpack.Decoder().decode
_decode_offsets = msgspec.msgpack.Decoder(list[int]).decode

# What msgspec raises for bytes a peer made up.
_UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, MemoryError, OverflowError)


def decode_request(frame: Frame, deadline: float, arena: ArenaReader | None) -> InferRequest:
    """Read an INFER frame; `deadline` is its time left, added to this process's clock.

    Raises:
        ProtocolError: the frame is malformed.
    """
    try:
        wire = _decode_request(frame.meta)
    except _UNDECODABLE as error:
        raise ProtocolError(f"malformed request: {error}") from error
    return InferRequest(
        wire.model_name,
        wire.model_version,
        _tensors(wire.inputs, frame, arena),
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


def decode_response(frame: Frame, arena: ArenaReader | None) -> InferResponse:
    """Read a RESPONSE frame.

    Raises:
        ProtocolError: the frame is malformed.
    """
    try:
        wire = _decode_response(frame.meta)
    except _UNDECODABLE as error:
        raise ProtocolError(f"malformed response: {error}") from error
    fault = wire.error
    return InferResponse(
        wire.model_name,
        wire.model_version,
        _tensors(wire.outputs, frame, arena),
        wire.id,
        wire.parameters,
        bool(frame.flags & FINAL),
        None if fault is None else InferError(fault.code, fault.message, fault.reason),
        wire.timestamps,
    )


def _tensors(wire: tuple[_WireTensor, ...], frame: Frame, arena: ArenaReader | None) -> tuple[Tensor, ...]:
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
            if arena is None:
                raise ProtocolError("a tensor in shared memory on a connection that has none")
            data = arena.view(*data)
        tensors.append(Tensor(tensor.name, tensor.datatype, tensor.shape, data))
    if position != len(frame.payload):
        raise ProtocolError(f"payload of {len(frame.payload)} bytes, but its tensors have {position}")
    return tuple(tensors)


def _from_payload(frame: Frame, start: int, nbytes: int) -> Buffer:
    payload = frame.payload
    if nbytes <= 0 or start + nbytes > len(payload):
        raise ProtocolError(f"tensor of {nbytes} bytes at {start} is outside a payload of {len(payload)}")
    piece = payload[start : start + nbytes]
    if frame.owned and nbytes * _PIN_RATIO >= len(payload) + len(frame.meta):
        return piece
    return bytes(piece)


def encode_release(offsets: list[int]) -> bytes:
    """Encode the meta of a RELEASE frame."""
    return _encode(offsets)


def decode_release(frame: Frame) -> list[int]:
    """Read a RELEASE frame.

    Raises:
        ProtocolError: the frame is malformed.
    """
    try:
        return _decode_offsets(frame.meta)
    except _UNDECODABLE as error:
        raise ProtocolError(f"malformed release: {error}") from error


def encode_control(verb: str, argument: Any) -> bytes:
    """Encode the meta of a CONTROL frame.

    Raises:
        TypeError: the argument has no msgpack encoding.
    """
    return _encode((verb, argument))


def decode_control(frame: Frame) -> tuple[str, Any]:
    """Read a CONTROL frame: verb and argument.

    Raises:
        ProtocolError: the frame is malformed.
    """
    try:
        wire = _decode_control(frame.meta)
    except _UNDECODABLE as error:
        raise ProtocolError(f"malformed control call: {error}") from error
    return wire.verb, wire.argument


def encode_value(value: Any) -> bytes:
    """Encode the meta of a successful CONTROL_REPLY."""
    return _encode(value)


def encode_error(error: InferError) -> bytes:
    """Encode the meta of a failed CONTROL_REPLY."""
    return _encode((error.code, error.message, error.reason))


def decode_value(frame: Frame) -> Any:
    """Read a successful CONTROL_REPLY.

    Raises:
        ProtocolError: the frame is malformed.
    """
    try:
        return _decode_any(frame.meta)
    except _UNDECODABLE as error:
        raise ProtocolError(f"malformed reply: {error}") from error


def decode_error(frame: Frame) -> InferError:
    """Read a failed CONTROL_REPLY.

    Raises:
        ProtocolError: the frame is malformed.
    """
    try:
        wire = _decode_error(frame.meta)
    except _UNDECODABLE as error:
        raise ProtocolError(f"malformed error: {error}") from error
    return InferError(wire.code, wire.message, wire.reason)
