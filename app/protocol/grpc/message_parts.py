"""Finds the raw contents of a serialised ModelInferRequest, without protobuf. No I/O.

Protobuf copies a bytes field twice on the way in. Hence a large message is split into its header and its raw
contents before protobuf sees it; large contents are views.
"""

from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from app.core.tensors import Buffer

_ID_TAG: Final = 0x1A
_RAW_TAG: Final = 0x3A
_LENGTH_DELIMITED: Final = 2
_VIEWED_FROM: Final = 4096
"""Bytes from which a view of the message costs less than a copy out of it."""


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
