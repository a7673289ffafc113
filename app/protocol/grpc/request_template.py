"""What a ModelInferRequest says besides its id and raw contents, decoded once for all alike. No I/O."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from app.core.errors import internal
from app.core.tensors import Buffer, InferRequest, Parameters, RegionSlice, RequestedOutput, Tensor
from app.protocol.grpc.request_splitter import cut_request
from app.protocol.grpc.v2 import decode_infer, parse_infer
from app.protocol.header_cache import HeaderCache


class _Input(NamedTuple):
    """An input in the shared memory `data`, or else in the next of the raw contents."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: RegionSlice | None


class GrpcRequestTemplate(NamedTuple):
    """A request without its id and its raw contents; `raw_count` of these are wanted."""

    model_name: str
    model_version: str
    inputs: tuple[_Input, ...]
    outputs: tuple[RequestedOutput, ...]
    parameters: Parameters
    priority: int
    timeout_us: int
    regions: bool
    raw_count: int

    def apply(self, identifier: str, raw: Sequence[Buffer], deadline: float) -> InferRequest:
        """Return the request."""
        inputs: list[Tensor] = []
        taken = 0
        for name, datatype, shape, region in self.inputs:
            if region is None:
                inputs.append(Tensor(name, datatype, shape, raw[taken]))
                taken += 1
            else:
                inputs.append(Tensor(name, datatype, shape, region))
        return InferRequest(
            self.model_name,
            self.model_version,
            tuple(inputs),
            self.outputs,
            identifier,
            self.parameters,
            priority=self.priority,
            timeout_us=self.timeout_us,
            deadline=deadline,
            regions=self.regions,
        )


_plans: Final = HeaderCache[GrpcRequestTemplate](max_entries=4096, max_key_bytes=4096, max_bytes=8 << 20)


def read_infer(data: Buffer, deadline: float = 0.0) -> InferRequest:
    """Decode a serialised ModelInferRequest; large tensors are views of `data`.

    Raises:
        InferError: INTERNAL when `data` is no such message; see `decode_infer`.
    """
    try:
        cut = cut_request(data)
        if cut is None:
            message, raw = parse_infer(bytes(data))
            return decode_infer(message, raw, deadline)
        header, identifier, contents = cut
        plan = _plans.get(header)
        if plan is None:
            return _read_new(header, identifier, contents, deadline)
    except DecodeError:
        raise internal("failed to parse the request message") from None
    if len(contents) < plan.raw_count:
        return _read_new(header, identifier, contents, deadline)
    return plan.apply(identifier, contents, deadline)


def _read_new(header: bytes, identifier: str, raw: Sequence[Buffer], deadline: float) -> InferRequest:
    message = pb.ModelInferRequest.FromString(header)
    message.id = identifier
    request = decode_infer(message, raw, deadline)
    if _repeats(message, request):
        _plans.put(header, _plan(request))
    return request


def _repeats(message: pb.ModelInferRequest, request: InferRequest) -> bool:
    """Whether the same header is likely to come again: it has no data of its own and is of no sequence."""
    if request.sequence_id or request.sequence_start or request.sequence_end:
        return False
    return not any([tensor.HasField("contents") for tensor in message.inputs])


def _plan(request: InferRequest) -> GrpcRequestTemplate:
    inputs = tuple(
        [
            _Input(t.name, t.datatype, t.shape, t.data if type(t.data) is RegionSlice else None)
            for t in request.inputs
        ]
    )
    return GrpcRequestTemplate(
        request.model_name,
        request.model_version,
        inputs,
        request.outputs,
        request.parameters,
        request.priority,
        request.timeout_us,
        request.regions,
        sum([entry.data is None for entry in inputs]),
    )
