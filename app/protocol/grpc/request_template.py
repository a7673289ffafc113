"""Decodes serialised ModelInferRequests, with templates for those that repeat. No I/O.

Protobuf copies a bytes field twice on the way in. Hence a message is split into its header and its raw
contents before protobuf sees it; large contents are views. Clients repeat the header: it is decoded once, to
a template.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from app.core.errors import internal
from app.core.tensors import Buffer, InferRequest, Parameters, RegionSlice, RequestedOutput, Tensor
from app.protocol.grpc.request_message import decode_infer
from app.protocol.header_cache import HeaderCache

_ID_TAG: Final = 0x1A
_RAW_TAG: Final = 0x3A
_LENGTH_DELIMITED: Final = 2
_VIEWED_FROM: Final = 4096
"""Bytes from which a view of the message costs less than a copy out of it."""
_SPLIT_FROM: Final = 65536
"""Bytes from which protobuf's own copies cost more than splitting the message in Python."""


class SplitRequest(NamedTuple):
    """A serialised request in parts.

    Attributes:
        header: all fields but `id` and `raw_input_contents`, in order.
        id: the request id.
        raw: the raw contents: short ones are copies, long ones views.
    """

    header: bytes
    id: str
    raw: list[Buffer]


def split_request(data: Buffer) -> SplitRequest | None:
    """Split a serialised request; None for a message with unknown or repeated fields, which protobuf decodes.

    Every field of ModelInferRequest is length-delimited (wire type 2) and has a tag of one byte, so that
    there are only tags and lengths to read.

    Raises:
        DecodeError: a length is malformed, or the id is not UTF-8.
    """
    position = begun = 0
    end = len(data)
    header: list[bytes] = []
    raw: list[Buffer] = []
    request_id: str | None = None
    while position < end - 1:
        tag = data[position]
        if tag & 7 != _LENGTH_DELIMITED or tag > 0x7F:
            return None
        length = data[position + 1]
        start = position + 2
        if length > 0x7F:
            length, start = read_varint(data, position + 1)
        stop = start + length
        if tag != _RAW_TAG and tag != _ID_TAG:
            position = stop
            continue
        if stop > end or (tag == _ID_TAG and request_id is not None):
            return None
        if tag == _ID_TAG:
            try:
                request_id = str(data[start:stop], "utf-8")
            except UnicodeDecodeError as error:
                raise DecodeError(str(error)) from None
        else:
            raw.append(bytes(data[start:stop]) if length < _VIEWED_FROM else memoryview(data)[start:stop])
        if begun < position:
            header.append(bytes(data[begun:position]))
        position = begun = stop
    if position != end:
        return None
    if begun < end:
        header.append(bytes(data[begun:]))
    return SplitRequest(header[0] if len(header) == 1 else b"".join(header), request_id or "", raw)


def first_tensor_offset(beginning: Buffer) -> int:
    """Return the offset of the first long raw content, 0 if the beginning of a message does not show it."""
    position, end = 0, len(beginning)
    try:
        while position < end - 1:
            length, start = read_varint(beginning, position + 1)
            if beginning[position] == _RAW_TAG and length >= _VIEWED_FROM:
                return start
            position = start + length
    except DecodeError:
        pass
    return 0


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """Return the number at a position, and the position behind it.

    Raises:
        DecodeError: it does not end within five bytes, or within the data.
    """
    value = shift = 0
    for byte in data[position : position + 5]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position + shift // 7
    raise DecodeError("length runs past the message")


def parse_infer(data: Buffer) -> tuple[pb.ModelInferRequest, Sequence[Buffer]]:
    """Parse a serialised ModelInferRequest.

    Returns:
        The message and its raw input contents; those of a large message are views of `data`, absent from the
        message.

    Raises:
        InferError: INTERNAL when `data` is no such message.
    """
    try:
        split = split_request(data) if len(data) >= _SPLIT_FROM else None
        if split is not None:
            message = pb.ModelInferRequest.FromString(split.header)
            message.id = split.id
            return message, split.raw
        message = pb.ModelInferRequest.FromString(data)
    except DecodeError:
        raise internal("failed to parse the request message") from None
    return message, message.raw_input_contents


class _Input(NamedTuple):
    """An input whose data is in shared memory (`data`), or else the next raw content."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: RegionSlice | None


class GrpcRequestTemplate(NamedTuple):
    """A request without its id and its `raw_count` raw contents."""

    model_name: str
    model_version: str
    inputs: tuple[_Input, ...]
    outputs: tuple[RequestedOutput, ...]
    parameters: Parameters
    priority: int
    timeout_us: int
    regions: bool
    raw_count: int

    def apply(self, request_id: str, raw: Sequence[Buffer], deadline: float) -> InferRequest:
        """Return the request."""
        inputs: list[Tensor] = []
        used = 0
        for name, datatype, shape, region in self.inputs:
            if region is None:
                inputs.append(Tensor(name, datatype, shape, raw[used]))
                used += 1
            else:
                inputs.append(Tensor(name, datatype, shape, region))
        return InferRequest(
            self.model_name,
            self.model_version,
            tuple(inputs),
            self.outputs,
            request_id,
            self.parameters,
            priority=self.priority,
            timeout_us=self.timeout_us,
            deadline=deadline,
            regions=self.regions,
        )


templates: Final = HeaderCache[GrpcRequestTemplate](max_entries=4096, max_key_bytes=4096, max_bytes=8 << 20)


def decode_request(data: Buffer, deadline: float = 0.0) -> InferRequest:
    """Decode a serialised ModelInferRequest; large tensors are views of `data`.

    Raises:
        InferError: INTERNAL when `data` is no such message; see `decode_infer`.
    """
    try:
        split = split_request(data)
        if split is None:
            message, raw = parse_infer(bytes(data))
            return decode_infer(message, raw, deadline)
        header, request_id, contents = split
        template = templates.get(header)
        if template is None:
            return _decode_new(header, request_id, contents, deadline)
    except DecodeError:
        raise internal("failed to parse the request message") from None
    if len(contents) < template.raw_count:
        return _decode_new(header, request_id, contents, deadline)
    return template.apply(request_id, contents, deadline)


def _decode_new(header: bytes, request_id: str, raw: Sequence[Buffer], deadline: float) -> InferRequest:
    message = pb.ModelInferRequest.FromString(header)
    message.id = request_id
    request = decode_infer(message, raw, deadline)
    if _repeats(message, request):
        templates.put(header, _make_template(request))
    return request


def _repeats(message: pb.ModelInferRequest, request: InferRequest) -> bool:
    """Return whether the header is likely to repeat: no typed contents, no sequence."""
    if request.sequence_id or request.sequence_start or request.sequence_end:
        return False
    return not any([tensor.HasField("contents") for tensor in message.inputs])


def _make_template(request: InferRequest) -> GrpcRequestTemplate:
    inputs = tuple(
        [
            _Input(t.name, t.datatype, t.shape, t.data if type(t.data) is RegionSlice else None)
            for t in request.inputs
        ]
    )
    return GrpcRequestTemplate(
        request.model_name,
        request.model_version,
        inputs,
        request.outputs,
        request.parameters,
        request.priority,
        request.timeout_us,
        request.regions,
        sum([entry.data is None for entry in inputs]),
    )
