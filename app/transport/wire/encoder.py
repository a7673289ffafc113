"""Requests and responses on their way out, as frames of the form that `messages` describes and reads."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from app.core.errors import internal, invalid_arg
from app.core.tensors import Buffer, InferRequest, InferResponse, Parameters, RegionSlice, Tensor
from app.transport.memory.arena import ArenaWriter
from app.transport.memory.lending import Lender
from app.transport.settings import TransportSettings
from app.transport.wire.frames import FINAL, HEADER, Kind, padded
from app.transport.wire.messages import MAX_TENSORS

IN_META: Final = 4096
"""Tensors up to this size are copied into the meta: below, copying costs less than a view."""

_INFER: Final = int(Kind.INFER)
_RESPONSE: Final = int(Kind.RESPONSE)
_Placed = tuple[str, str, tuple[int, ...], Any]

_encode = msgspec.msgpack.Encoder().encode

# What is raised for values that have no encoding.
_UNENCODABLE: Final = (TypeError, ValueError, OverflowError, RecursionError, BufferError, AttributeError)

_ZEROS: Final = bytes(64)


class FrameEncoder:
    """Places the tensors of what is sent: into the meta, the arena or the payload.

    What the peer would have to refuse is refused here: there, it would cost everybody the connection.
    """

    def __init__(
        self, settings: TransportSettings, arena: ArenaWriter | None, lender: Lender | None = None
    ) -> None:
        self._arena = arena
        self._lender = lender
        self._threshold = max(settings.arena_threshold, IN_META + 1)
        self._max_meta = settings.max_meta_bytes
        self._max_payload = settings.max_frame_bytes - settings.max_meta_bytes

    def request(self, queue: list[Buffer], stream: int, request: InferRequest, deadline_us: int) -> int:
        """Append an INFER frame to a queue of buffers to be written in turn; returns its size.

        Raises:
            InferError: INVALID_ARG when the request has no encoding or is too large; the queue is unchanged.
        """
        tensors: list[_Placed] = []
        pieces: list[Buffer] = []
        try:
            size = self._place(request.inputs, tensors, pieces)
            meta: tuple[Any, ...] = (
                request.model_name,
                request.model_version,
                tensors,
                [
                    output.name if output.region is None else (output.name, output.region)
                    for output in request.outputs
                ],
                request.id,
            )
            trace, regions, chain = request.trace, request.regions, request.chain
            reserved = request.sequence_id or request.priority or request.timeout_us
            if request.parameters or reserved or trace or regions or chain:
                meta += (
                    _scalars(request.parameters),
                    request.sequence_id,
                    request.sequence_start,
                    request.sequence_end,
                    request.priority,
                    request.timeout_us,
                    trace,
                    regions,
                    chain,
                )
            encoded = self._bounded(_encode(meta), len(request.outputs))
        except _UNENCODABLE as error:
            self._take_back(tensors)
            raise invalid_arg(f"the request cannot be sent to the model: {error}") from error
        header = HEADER.pack(_INFER, 0, 0, len(encoded), size, stream, deadline_us)
        return _append(queue, header + encoded, pieces, size)

    def response(self, queue: list[Buffer], stream: int, response: InferResponse) -> int:
        """Append a RESPONSE frame to a queue of buffers, like `request`.

        Raises:
            InferError: INTERNAL when the response has no encoding or is too large; the queue is unchanged.
        """
        tensors: list[_Placed] = []
        pieces: list[Buffer] = []
        try:
            size = self._place(response.outputs, tensors, pieces)
            meta: tuple[Any, ...] = (response.model_name, response.model_version, tensors, response.id)
            failure = response.failure
            if failure is not None or response.timestamps is not None:
                meta += (_scalars(response.parameters), failure, response.timestamps)
                if response.calls:
                    meta += (response.calls,)
            elif response.parameters:
                meta += (_scalars(response.parameters),)
            encoded = self._bounded(_encode(meta))
        except _UNENCODABLE as cause:
            self._take_back(tensors)
            raise internal(f"the model's response cannot be sent: {cause}") from cause
        flags = FINAL if response.final else 0
        header = HEADER.pack(_RESPONSE, flags, 0, len(encoded), size, stream, 0)
        return _append(queue, header + encoded, pieces, size)

    def _place(self, tensors: Sequence[Tensor], placed: list[_Placed], pieces: list[Buffer]) -> int:
        """Describe tensors in `placed`, add the payload to `pieces`; returns the size of the payload."""
        if len(tensors) > MAX_TENSORS:
            raise ValueError(f"{len(tensors)} tensors are more than {MAX_TENSORS}")
        size = 0
        for tensor in tensors:
            data = tensor.data
            nbytes = data.nbytes if type(data) is memoryview else len(data)
            if nbytes > IN_META and type(data) is not RegionSlice:
                where = self._share(data, nbytes) if nbytes >= self._threshold else None
                if where is None:
                    gap = padded(size) - size
                    # As bytes, whatever the format: who writes it counts in elements.
                    flat = memoryview(data).cast("B")
                    pieces += (_ZEROS[:gap], flat) if gap else (flat,)
                    size += gap + nbytes
                data = where or nbytes
            placed.append((tensor.name, tensor.datatype, tensor.shape, data))
        if size > self._max_payload:
            raise ValueError(f"{size} bytes of tensors are more than {self._max_payload}")
        return size

    def _share(self, data: Buffer, nbytes: int) -> tuple[int, ...] | None:
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

    def _take_back(self, placed: list[_Placed]) -> None:
        for *_, data in placed:
            if type(data) is tuple and len(data) == 4 and self._lender is not None:
                self._lender.released(data[3])
            elif type(data) is tuple and self._arena is not None:
                self._arena.release(data[0])

    def _bounded(self, meta: bytes, names: int = 0) -> bytes:
        if len(meta) > self._max_meta:
            raise ValueError(f"{len(meta)} bytes of names and parameters are more than {self._max_meta}")
        if names > MAX_TENSORS:
            raise ValueError(f"{names} requested outputs are more than {MAX_TENSORS}")
        return meta


def _scalars(parameters: Parameters) -> Parameters:
    for name, value in parameters.items():
        if not isinstance(name, str) or not isinstance(value, bool | int | float | str):
            raise TypeError(f"parameter '{name}' is neither a number nor text")
    return parameters


def _append(queue: list[Buffer], head: bytes, pieces: list[Buffer], size: int) -> int:
    if not pieces:
        queue.append(head)
        return len(head)
    start = padded(len(head))
    queue.append(head + _ZEROS[: start - len(head)])
    queue += pieces
    return start + size
