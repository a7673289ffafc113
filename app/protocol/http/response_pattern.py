"""Patterns of responses that differ only in their id and the data of their tensors, for C to write them."""

from typing import Final, NamedTuple

import msgspec

from app.core.tensors import InferResponse
from app.protocol.http.http1 import response_head
from app.protocol.http.json_tensors import encode_data
from app.protocol.http.v2 import BINARY_HEADERS, JSON_HEADERS, EncodedResponse

ID: Final = -1
"""The piece that is the request's id."""
ANY_SIZE: Final = -1
_BEFORE_ID: Final = b'{"id":"'
_BEFORE_DATA: Final = b'"data":'
_JSON_LENGTH, _LENGTH = 1_111_111_111, 2_222_222_222
"""Stand-ins for the lengths of the JSON and of the body."""


class OutputLook(NamedTuple):
    """An output without its data; `nbytes` is the size of that, or `ANY_SIZE` if it is in the JSON."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    nbytes: int


class Answer(NamedTuple):
    """Responses that look the same.

    `heads` are the parts of the head around the length of the JSON, unless that is the whole body, and around
    the length of the body. `pieces` are those of the JSON: bytes, or the number of an output whose data is
    there (`encode_data`), or `ID`. The data of the other outputs follows.
    """

    model_name: str
    model_version: str
    outputs: tuple[OutputLook, ...]
    heads: tuple[bytes, ...]
    pieces: tuple[bytes | int, ...]


def find_answer(response: InferResponse, encoded: EncodedResponse, identifier: str) -> Answer | None:
    """Return what a response looks like; None if that cannot be told.

    Args:
        response: without parameters, and without an id but the request's.
        encoded: the response without classifications and regions, as `encode_infer` returned it.
        identifier: the request's id if others have other ones, else "".
    """
    document = bytes(encoded.parts[0])
    try:
        described = msgspec.json.decode(document)["outputs"]
    except msgspec.DecodeError:  # NaN, say
        return None
    outputs: list[OutputLook] = []
    pieces: list[bytes | int] = [_BEFORE_ID, ID] if identifier else []
    position = len(_BEFORE_ID) + len(identifier) if identifier else 0
    for number, (tensor, entry) in enumerate(zip(response.outputs, described, strict=True)):
        size = len(tensor.data)
        if "data" in entry:
            size, text = ANY_SIZE, encode_data(tensor)
            start = document.index(_BEFORE_DATA + text, position) + len(_BEFORE_DATA)
            pieces += (document[position:start], number)
            position = start + len(text)
        outputs.append(OutputLook(tensor.name, tensor.datatype, tensor.shape, size))
    pieces.append(document[position:])
    heads = _JSON_HEADS if len(encoded.parts) == 1 else _BINARY_HEADS
    return Answer(response.model_name, response.model_version, tuple(outputs), heads, tuple(pieces))


def _split(head: bytes, *lengths: int) -> tuple[bytes, ...]:
    parts = []
    for length in lengths:
        part, _, head = head.partition(b"%d" % length)
        parts.append(part)
    return (*parts, head)


_JSON_HEADS: Final = _split(response_head(200, JSON_HEADERS, _LENGTH, keep_alive=True), _LENGTH)
_BINARY_HEADS: Final = _split(
    response_head(200, BINARY_HEADERS % _JSON_LENGTH, _LENGTH, keep_alive=True), _JSON_LENGTH, _LENGTH
)
