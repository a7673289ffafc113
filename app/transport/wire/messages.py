"""Requests and responses as frames: how each is written and read.

Where the extension is compiled, it reads and writes messages without parameters and failures, their tensors
in the message, in client memory or, at the ends of a channel, in memory that they share, and requests with a
chain. It leaves all others, malformed ones too, to this module: so also those that have a new field set.

The meta of either is a msgpack array that ends early when the rest has default values; `_WireRequest` and
`_WireResponse` say in which order its elements come. To add a field to requests: add it to `InferRequest` and
`_WireRequest`, at the same place.
"""

from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec.msgpack import Ext

from app.core.errors import Failure, internal, invalid_arg
from app.core.tensors import (
    Buffer,
    InferRequest,
    InferResponse,
    Parameters,
    RequestedOutput,
    Timestamps,
    TracedCall,
)
from app.transport.memory.arena import ArenaReader, ArenaWriter
from app.transport.memory.lending import Borrower, Lender
from app.transport.protocol import ProtocolError
from app.transport.settings import TransportSettings
from app.transport.wire.compiled import compiled_messages
from app.transport.wire.frames import FINAL, HEADER, ZEROS, Frame, Kind, padded
from app.transport.wire.tensors import (
    MAX_TENSORS,
    Description,
    TensorWriter,
    WireTensors,
    read_place,
    read_tensors,
    write_place,
)

if TYPE_CHECKING:
    from app.native.extension import Messages

_INFER: Final = int(Kind.INFER)
_RESPONSE: Final = int(Kind.RESPONSE)

_WireOutput = str | tuple[str, Ext]
"""A name; with its place, as `WireTensor.data` has it, for an output in client memory."""


class _WireRequest(msgspec.Struct, array_like=True, gc=False):
    model_name: str
    model_version: str
    inputs: WireTensors
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
    mirrored: bool = False


class _WireResponse(msgspec.Struct, array_like=True, gc=False):
    model_name: str
    model_version: str
    outputs: WireTensors
    id: str = ""
    parameters: Parameters = {}
    failure: Failure | None = None
    timestamps: Timestamps | None = None
    calls: Annotated[tuple[TracedCall, ...], msgspec.Meta(max_length=MAX_TENSORS)] = ()


_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(_WireRequest).decode
_decode_response = msgspec.msgpack.Decoder(_WireResponse).decode
_optional = attrgetter(*_WireRequest.__struct_fields__[5:])
"""Returns what most requests leave at its default, of an `InferRequest` as of a `_WireRequest`."""

# Raised for values that have no encoding.
_UNENCODABLE: Final = (TypeError, ValueError, OverflowError, RecursionError, BufferError, AttributeError)
UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, MemoryError, OverflowError)
"""Raised by msgspec for bytes that a peer made up."""


class FrameEncoder:
    """Writes the frames of requests and responses.

    It refuses what the peer would have to refuse: there, that would cost everybody the connection.
    """

    def __init__(
        self, settings: TransportSettings, arena: ArenaWriter | None, lender: Lender | None = None
    ) -> None:
        self._tensors = TensorWriter(settings, arena, lender)
        self.share, self.unshare = self._tensors.share, self._tensors.unshare
        self._max_meta = settings.max_meta_bytes
        self.compiled = compiled_messages(settings)

    def request(self, queue: list[Buffer], stream: int, request: InferRequest, deadline_us: int) -> int:
        """Append an INFER frame to a queue of buffers to be sent; return its size in bytes.

        Raises:
            InferError: INVALID_ARG when the request has no encoding or is too large; the queue is unchanged.
        """
        frame = None if self.compiled is None else self.compiled.write_request(request, stream, deadline_us)
        if frame is not None:
            queue.append(frame)
            return len(frame)
        tensors: list[Description] = []
        payload: list[Buffer] = []
        try:
            size = self._tensors.write(request.inputs, tensors, payload)
            outputs = request.outputs and [
                o.name if o.region is None else (o.name, write_place(o.region)) for o in request.outputs
            ]
            if len(outputs) > MAX_TENSORS:
                raise ValueError(f"{len(outputs)} requested outputs are more than {MAX_TENSORS}")
            meta: tuple[Any, ...] = (request.model_name, request.model_version, tensors, outputs, request.id)
            optional = _optional(request)
            if any(optional):
                _check_parameters(request.parameters)
                meta += optional
            head = self._head(_INFER, 0, _encode(meta), size, stream, deadline_us)
        except _UNENCODABLE as error:
            self._tensors.release(tensors)
            raise invalid_arg(f"the request cannot be sent to the model: {error}") from error
        queue.append(head)
        queue += payload
        return len(head) + size

    def response(self, queue: list[Buffer], stream: int, response: InferResponse) -> int:
        """Append a RESPONSE frame to a queue of buffers, like `request`.

        Raises:
            InferError: INTERNAL when the response has no encoding or is too large; the queue is unchanged.
        """
        frame = None if self.compiled is None else self.compiled.write_response(response, stream)
        if frame is not None:
            queue.append(frame)
            return len(frame)
        tensors: list[Description] = []
        payload: list[Buffer] = []
        try:
            size = self._tensors.write(response.outputs, tensors, payload)
            meta: tuple[Any, ...] = (response.model_name, response.model_version, tensors, response.id)
            failed_or_traced = response.failure is not None or response.timestamps is not None
            if response.parameters or failed_or_traced:
                _check_parameters(response.parameters)
                meta += (response.parameters,)
            if failed_or_traced:
                meta += (response.failure, response.timestamps)
                if response.calls:
                    meta += (response.calls,)
            head = self._head(_RESPONSE, FINAL if response.final else 0, _encode(meta), size, stream, 0)
        except _UNENCODABLE as error:
            self._tensors.release(tensors)
            raise internal(f"the model's response cannot be sent: {error}") from error
        queue.append(head)
        queue += payload
        return len(head) + size

    def _head(
        self, kind: int, flags: int, meta: bytes, payload_size: int, stream: int, deadline_us: int
    ) -> bytes:
        """Return all of a frame that comes before its payload."""
        if len(meta) > self._max_meta:
            raise ValueError(f"{len(meta)} bytes of names and parameters are more than {self._max_meta}")
        head = HEADER.pack(kind, flags, 0, len(meta), payload_size, stream, deadline_us) + meta
        return head + ZEROS[: padded(len(head)) - len(head)] if payload_size else head


def decode_request(
    frame: Frame,
    deadline: float,
    arena: ArenaReader | None,
    borrower: Borrower | None = None,
    compiled: "Messages | None" = None,
) -> InferRequest:
    """Read an INFER frame; `deadline` is its time left, added to this process's clock (monotonic seconds).

    Raises:
        ProtocolError: the frame is malformed.
    """
    if compiled is not None and not frame.payload:
        request = compiled.read_request(frame.meta, deadline)
        if request is not None:
            return request
    try:
        wire = _decode_request(frame.meta)
        inputs = read_tensors(wire.inputs, frame, arena, borrower)
        outputs = [
            RequestedOutput(o) if isinstance(o, str) else RequestedOutput(o[0], region=read_place(o[1]))
            for o in wire.outputs
        ]
    except UNDECODABLE as error:
        raise ProtocolError(f"malformed request: {error}") from error
    return InferRequest(
        wire.model_name,
        wire.model_version,
        inputs,
        tuple(outputs),
        wire.id,
        *(*_optional(wire), deadline),
    )


def decode_response(
    frame: Frame,
    arena: ArenaReader | None,
    borrower: Borrower | None = None,
    compiled: "Messages | None" = None,
) -> InferResponse:
    """Read a RESPONSE frame.

    Raises:
        ProtocolError: the frame is malformed.
    """
    final = bool(frame.flags & FINAL)
    if compiled is not None and not frame.payload:
        response = compiled.read_response(frame.meta, final)
        if response is not None:
            return response
    try:
        wire = _decode_response(frame.meta)
        outputs = read_tensors(wire.outputs, frame, arena, borrower)
    except UNDECODABLE as error:
        raise ProtocolError(f"malformed response: {error}") from error
    return InferResponse(
        wire.model_name,
        wire.model_version,
        outputs,
        wire.id,
        wire.parameters,
        final,
        wire.failure,
        wire.timestamps,
        wire.calls,
    )


def _check_parameters(parameters: Parameters) -> None:
    for name, value in parameters.items():
        if not isinstance(name, str) or not isinstance(value, bool | int | float | str):
            raise TypeError(f"parameter '{name}' is neither a number nor text")
