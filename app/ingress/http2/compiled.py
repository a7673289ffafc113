"""The compiled way of most unary calls, for the connections of a server that uses it."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from app.core.tensors import InferRequest, InferResponse, RegionSlice, RequestedOutput, Tensor
from app.ingress.http2.call import OpenCall, UnaryCall, UnaryHandler, nothing
from app.ingress.http2.connection import Http2Connection
from app.ingress.http2.state import Http2State
from app.ingress.http2.stream import Output, Stream
from app.ingress.http2.windows import CREDIT_FROM, MAX_FRAME, STREAM_WINDOW
from app.native.choice import is_native
from app.protocol.grpc.framing import (
    OK_TRAILERS,
    RESPONSE_HEADERS,
    CallHead,
    MessageReader,
    decode_metadata,
)
from app.protocol.grpc.header_blocks import HUFFMAN_STATES, STATIC_TABLE, refuse_block
from app.protocol.grpc.http2 import FrameReader, Keepalive
from app.protocol.grpc.request_message import decode_request

if TYPE_CHECKING:
    from app.native.extension import UnaryCalls

TYPES: Final = (
    *(Http2Connection, FrameReader, Output, Keepalive, Stream, UnaryCall),
    *(InferRequest, InferResponse, Tensor, RequestedOutput, RegionSlice, CallHead, MessageReader),
)


def compiled_calls(
    data_plane: str, state: Http2State, methods: Mapping[str, OpenCall], restricted: Mapping[str, object]
) -> "UnaryCalls | None":
    """Return what receives and answers most calls in place of Python; None where Python does all.

    Args:
        methods: by path; of these, the unary ones that are open to every client.
        restricted: those that are not, by path.
    """
    if not is_native(data_plane):
        return None
    from app.native.extension import UnaryCalls

    settings = state.settings
    return UnaryCalls(
        TYPES,
        state,
        {
            path: opens
            for path, method in methods.items()
            if path not in restricted and (opens := _handler(method))
        },
        nothing,
        RESPONSE_HEADERS,
        OK_TRAILERS,
        STATIC_TABLE,
        HUFFMAN_STATES,
        decode_metadata,
        refuse_block,
        decode_request,
        max_header=settings.max_header_size,
        max_calls=settings.max_calls,
        max_streams=settings.max_streams,
        max_buffered=settings.max_buffered_bytes,
        max_message=settings.max_message_size,
        max_control_frames=settings.max_control_frames,
        stream_window=STREAM_WINDOW,
        connection_window=CREDIT_FROM,
        max_frame=MAX_FRAME,
    )


def _handler(method: OpenCall) -> UnaryHandler | None:
    """Return what answers the calls of a method; None unless they are opened as `UnaryCall`, no more."""
    if isinstance(method, partial) and method.func is UnaryCall:
        handler: UnaryHandler = method.args[0]
        return handler
    return None
