"""The compiled reader of the JSON part of inference requests, and what it leaves to Python."""

from typing import TYPE_CHECKING, Final, Protocol

from app.core.tensors import Buffer, InferRequest, RegionSlice, RequestedOutput, Tensor
from app.native.choice import is_native
from app.protocol.http.http1 import response_head
from app.protocol.http.v2 import BINARY_HEADERS, JSON_HEADERS, HttpInfer, decode_infer

if TYPE_CHECKING:
    from app.native.extension import JsonRequests

_JSON_LENGTH, _LENGTH = 1_111_111_111, 2_222_222_222
"""Stand-ins for the lengths of the JSON and of the body."""


class DecodeInfer(Protocol):
    """What reads the body of a request; see `decode_infer`."""

    def __call__(
        self, model: str, version: str, body: Buffer, header_length: int, max_input_size: int
    ) -> HttpInfer: ...


def json_reader() -> "JsonRequests":
    """Return a reader, which needs the compiled data plane."""
    from app.native.extension import JsonRequests

    return JsonRequests(Tensor, RequestedOutput, RegionSlice, InferRequest, HttpInfer)


def infer_decoder(data_plane: str) -> DecodeInfer:
    """Return `decode_infer`, or what does the same in C for a JSON part as most clients write it.

    Long ones are read without the interpreter's lock.
    """
    if not is_native(data_plane):
        return decode_infer
    read = json_reader().read

    def decode(model: str, version: str, body: Buffer, header_length: int, max_input_size: int) -> HttpInfer:
        if header_length <= max_input_size:
            infer: HttpInfer | None = read(model, version, body, header_length, max_input_size)
            if infer is not None:
                return infer
        return decode_infer(model, version, body, header_length, max_input_size)

    return decode


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
