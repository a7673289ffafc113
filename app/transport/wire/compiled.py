"""The compiled reader and writer of messages, for connections that use it."""

from typing import TYPE_CHECKING, Final

from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import input_specs, output_specs
from app.core.tensors import InferRequest, InferResponse, RegionSlice, RequestedOutput, Tensor
from app.native.choice import is_native
from app.transport.settings import TransportSettings
from app.transport.wire.tensors import IN_META, MAX_TENSORS, PLACE, decode_place, encode_place

if TYPE_CHECKING:
    from app.native.extension import Messages, PlainCheck

_NOT_UNSET: Final = ("regions", "chain", "deadline", "rollout")
"""Fields of a request whose value is written, or is not in its meta."""


def compiled_messages(settings: TransportSettings) -> "Messages | None":
    """Return what reads and writes most messages in place of Python; None where Python does all."""
    if not is_native(settings.data_plane):
        return None
    from app.native.extension import Messages

    return Messages(
        Tensor,
        RequestedOutput,
        InferRequest,
        InferResponse,
        RegionSlice,
        encode_place,
        decode_place,
        request_unset=tuple(name for name in InferRequest.__struct_fields__[5:] if name not in _NOT_UNSET),
        response_unset=InferResponse.__struct_fields__[6:],
        max_meta=settings.max_meta_bytes,
        max_tensors=MAX_TENSORS,
        in_meta=IN_META,
        place_code=PLACE,
    )


def plain_check(messages: "Messages", config: mc.ModelConfig) -> "PlainCheck":
    """Return what says which requests are plainly right for a model."""
    from app.native.extension import PlainCheck

    inputs = tuple((s.name, s.datatype, s.itemsize, s.dims, s.optional) for s in input_specs(config))
    outputs = frozenset(spec.name for spec in output_specs(config))
    return PlainCheck(messages, config.max_batch_size, inputs, outputs)
