"""The compiled reader of requests, and the templates from which it makes them.

It splits a message into its header, its id and its raw contents; a message whose header it has no template
for is left to Python, which reads it and makes one. Python itself reads no request by a template.
"""

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Final, NamedTuple, Protocol

from hpack.huffman_table import HUFFMAN_TABLE
from hpack.table import HeaderTable

from app.core.tensors import Buffer, InferRequest, Parameters, RegionSlice, RequestedOutput, Tensor
from app.native.choice import is_native
from app.native.learning import not_learned
from app.protocol.grpc.framing import CallHead, decode_metadata, read_head
from app.protocol.grpc.header_blocks import HeaderReader, refuse_block
from app.protocol.grpc.message_parts import split_request
from app.protocol.grpc.request_message import decode_request
from app.protocol.header_cache import HeaderCache

DecodeRequest = Callable[[Buffer, float], InferRequest]


class ReadsHeaders(Protocol):
    """Decodes the header blocks of one connection."""

    def read(self, block: bytes, /) -> CallHead:
        """Decode a block; raises as `HeaderReader`."""


NewHeaders = Callable[[], ReadsHeaders]


class _Input(NamedTuple):
    """An input whose data is in shared memory (`data`), or else the next raw content."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: RegionSlice | None


class RequestTemplate(NamedTuple):
    """A request without its id and its `raw_count` raw contents.

    The fields are in the order of `app/native/infer_requests.c`.
    """

    model_name: str
    model_version: str
    inputs: tuple[_Input, ...]
    outputs: tuple[RequestedOutput, ...]
    parameters: Parameters
    priority: int
    timeout_us: int
    regions: bool
    raw_count: int


class RequestTemplates:
    """The templates that the compiled reader has, by headers.

    Attributes:
        cache: what they are in; the reader looks into its `entries`.
    """

    def __init__(self) -> None:
        self.cache: Final = HeaderCache[RequestTemplate](
            max_entries=4096, max_key_bytes=4096, max_bytes=8 << 20
        )

    def read(self, data: Buffer, deadline: float) -> InferRequest:
        """Read a message without a template, and make one for those with the same header.

        Raises:
            InferError: see `decode_request`.
        """
        request = decode_request(data, deadline)
        with not_learned():
            self._learn(data, request)
        return request

    def _learn(self, data: Buffer, request: InferRequest) -> None:
        if request.sequence_id or request.sequence_start or request.sequence_end:
            return  # it is not likely to repeat
        split = split_request(data)
        if split is None or len(split.header) > self.cache.max_key_bytes:
            return
        template = _make_template(request)
        if template.raw_count <= len(split.raw):  # else it has typed contents
            self.cache.put(split.header, template)


def _make_template(request: InferRequest) -> RequestTemplate:
    inputs = [
        _Input(t.name, t.datatype, t.shape, t.data if type(t.data) is RegionSlice else None)
        for t in request.inputs
    ]
    return RequestTemplate(
        request.model_name,
        request.model_version,
        tuple(inputs),
        request.outputs,
        request.parameters,
        request.priority,
        request.timeout_us,
        request.regions,
        sum([entry.data is None for entry in inputs]),
    )


def header_readers(data_plane: str, max_size: int) -> NewHeaders:
    """Return what makes the readers of header lists of at most `max_size` bytes: Python's, or those in C."""
    if not is_native(data_plane):
        return partial(HeaderReader, read_head, max_size)
    from app.native.extension import HeaderDecoder

    static = tuple((name.decode(), value.decode()) for name, value in HeaderTable.STATIC_TABLE)
    states = bytes(chain.from_iterable(HUFFMAN_TABLE))
    return partial(HeaderDecoder, CallHead, static, states, decode_metadata, refuse_block, max_size)


def request_decoder(data_plane: str) -> DecodeRequest:
    """Return `decode_request`, or what does the same in C where there is a template for the request."""
    if not is_native(data_plane):
        return decode_request
    from app.native.extension import InferRequests

    templates = RequestTemplates()
    return InferRequests(Tensor, InferRequest, templates.cache.entries, templates.read).read
