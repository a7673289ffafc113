"""A serialised ModelInferRequest cut into what repeats and what does not, without protobuf. No I/O."""

from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from app.core.tensors import Buffer

_ID_TAG: Final = 0x1A
_RAW_TAG: Final = 0x3A
_LENGTH_DELIMITED: Final = 2
_VIEWED_FROM: Final = 4096
"""Bytes from which a view of the message costs less than a copy out of it."""


class SplitRequest(NamedTuple):
    """`header`: every field but `id` and `raw_input_contents`, in order; `raw`: copies or views of these."""

    header: bytes
    id: str
    raw: list[Buffer]


def cut_request(data: Buffer) -> SplitRequest | None:
    """Separate the fields; None when anything but plain known fields is met: protobuf shall look then.

    Every field of ModelInferRequest is length-delimited (wire type 2) and has a tag of one byte, so that
    there are only tags and lengths to read.

    Raises:
        DecodeError: a length is no number, or the id no text.
    """
    position = begun = 0
    end = len(data)
    header: list[bytes] = []
    raw: list[Buffer] = []
    identifier: bytes | None = None
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
        if stop > end or (tag == _ID_TAG and identifier is not None):
            return None
        if tag == _ID_TAG:
            identifier = bytes(data[start:stop])
        else:
            raw.append(bytes(data[start:stop]) if length < _VIEWED_FROM else memoryview(data)[start:stop])
        if begun < position:
            header.append(bytes(data[begun:position]))
        position = begun = stop
    if position != end:
        return None
    if begun < end:
        header.append(bytes(data[begun:]))
    return SplitRequest(header[0] if len(header) == 1 else b"".join(header), _text(identifier or b""), raw)


def first_tensor_offset(begun: Buffer) -> int:
    """Where the first long raw content begins, if the beginning of a message tells; else 0."""
    position, end = 0, len(begun)
    try:
        while position < end - 1:
            length, start = read_varint(begun, position + 1)
            if begun[position] == _RAW_TAG and length >= _VIEWED_FROM:
                return start
            position = start + length
    except DecodeError:
        pass
    return 0


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DecodeError(str(error)) from None


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """The number at a position, and the position behind it.

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
