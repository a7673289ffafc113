"""The compiled reader and writer of JSON parts, and what they leave to Python."""

from math import prod
from typing import Final, Protocol

from app.core.tensors import Buffer, InferRequest, RegionSlice, RequestedOutput, Tensor
from app.native.choice import is_native
from app.protocol.http.http1 import response_head
from app.protocol.http.json_tensors import EncodeData, encode_data
from app.protocol.http.v2 import BINARY_HEADERS, JSON_HEADERS, HttpInfer, decode_infer

JSON_TYPES: Final = (Tensor, RequestedOutput, RegionSlice, InferRequest, HttpInfer)
"""What requests are made of, in the order of `read_json`."""
_JSON_LENGTH, _LENGTH = 1_111_111_111, 2_222_222_222
"""Stand-ins for the lengths of the JSON and of the body."""


class DecodeInfer(Protocol):
    """Reads the body of a request; see `decode_infer`."""

    def __call__(
        self, model: str, version: str, body: Buffer, header_length: int, max_input_size: int
    ) -> HttpInfer: ...


def infer_decoder(data_plane: str) -> DecodeInfer:
    """Return `decode_infer`, or what does the same in C for a JSON part as most clients write it.

    Long ones are read without the interpreter's lock.
    """
    if not is_native(data_plane):
        return decode_infer
    from app.native.extension import read_json

    def decode(model: str, version: str, body: Buffer, header_length: int, max_input_size: int) -> HttpInfer:
        if header_length <= max_input_size:
            infer: HttpInfer | None = read_json(
                JSON_TYPES, model, version, body, header_length, max_input_size
            )
            if infer is not None:
                return infer
        return decode_infer(model, version, body, header_length, max_input_size)

    return decode


def data_encoder(data_plane: str) -> EncodeData:
    """Return `encode_data`, or what does the same in C, for much data without the interpreter's lock."""
    if not is_native(data_plane):
        return encode_data
    from app.native.extension import json_data

    def encode(tensor: Tensor) -> bytes:
        count = prod(tensor.shape)
        if 0 <= count <= len(tensor.data):  # of elements that each have a byte
            text = json_data(tensor.datatype, count, tensor.data)
            if text is not None:
                return text
        return encode_data(tensor)

    return encode


def _split(head: bytes, *lengths: int) -> tuple[bytes, ...]:
    parts = []
    for length in lengths:
        part, _, head = head.partition(b"%d" % length)
        parts.append(part)
    return (*parts, head)


RESPONSE_HEADS: Final = (
    *_split(response_head(200, JSON_HEADERS, _LENGTH, keep_alive=True), _LENGTH),
    *_split(
        response_head(200, BINARY_HEADERS % _JSON_LENGTH, _LENGTH, keep_alive=True), _JSON_LENGTH, _LENGTH
    ),
)
"""Two parts of the head of a response around the length of its JSON, which is its body; then three of one
with binary tensors, around the lengths of the JSON and of the body."""
