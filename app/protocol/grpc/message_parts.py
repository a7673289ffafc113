"""Finds the raw contents of a serialised ModelInferRequest, without protobuf. No I/O.

Protobuf copies a bytes field twice on the way in. Hence a large message is split into its header and its raw
contents before protobuf sees it; large contents are views.
"""

from typing import Final, NamedTuple

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
    """Split a serialised request; None for one that is not as simple as most, which protobuf has to judge.

    Every field of ModelInferRequest is length-delimited (wire type 2) and has a tag of one byte, so that
    there are only tags and lengths to read.
    """
    header: list[bytes] = []
    raw: list[Buffer] = []
    request_id: bytes | None = None
    position, end = 0, len(data)
    while position < end:
        tag = data[position]
        length, start = _read_length(data, position + 1)
        stop = start + length
        if tag & 7 != _LENGTH_DELIMITED or tag > 0x7F or not start or stop > end:
            return None
        if tag == _RAW_TAG:
            raw.append(bytes(data[start:stop]) if length < _VIEWED_FROM else memoryview(data)[start:stop])
        elif tag != _ID_TAG:
            header.append(bytes(data[position:stop]))
        elif request_id is None:
            request_id = bytes(data[start:stop])
        else:
            return None
        position = stop
    try:
        return SplitRequest(b"".join(header), (request_id or b"").decode(), raw)
    except UnicodeDecodeError:
        return None


def first_tensor_offset(beginning: Buffer) -> int:
    """Return the offset of the first long raw content, 0 if the beginning of a message does not show it."""
    position, end = 0, len(beginning)
    while position < end:
        length, start = _read_length(beginning, position + 1)
        if not start or (beginning[position] == _RAW_TAG and length >= _VIEWED_FROM):
            return start
        position = start + length
    return 0


def _read_length(data: Buffer, position: int) -> tuple[int, int]:
    """Return the number at a position, and the position behind it: 0 if it does not end within five bytes."""
    value = shift = 0
    for byte in data[position : position + 5]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position + shift // 7
    return 0, 0
