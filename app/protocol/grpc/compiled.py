"""The compiled reader of requests that repeat."""

from collections.abc import Callable

from app.core.tensors import Buffer, InferRequest, Tensor
from app.native.choice import is_native
from app.protocol.grpc.request_template import decode_request, templates

DecodeRequest = Callable[[Buffer, float], InferRequest]


def request_decoder(data_plane: str) -> DecodeRequest:
    """Return `decode_request`, or what does the same in C where there is a template for the request."""
    if not is_native(data_plane):
        return decode_request
    from app.native.extension import InferRequests

    return InferRequests(Tensor, InferRequest, templates.entries, decode_request).read
