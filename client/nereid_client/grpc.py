"""The v2 protocol over gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import grpc
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import service_pb2 as pb

from nereid_client.datatypes import decode
from nereid_client.errors import DeadlineExceeded, ServerError, Unreachable, server_error
from nereid_client.feedback import messages
from nereid_client.messages import Input, Output, Parameter, Request, Response, Slice
from nereid_client.retry import FIRST_CONTACT, Contact
from nereid_client.transport import Tls

_NO_CONNECTION: Final = ("failed to connect", "errors resolving", "DNS resolution failed")
"""How the details of a call begin for which no connection came about."""
_SERVICE: Final = "/inference.GRPCInferenceService/"
_RAW_INPUT_CONTENTS: Final = b"\x3a"
"""How an element of the field is introduced: number 7, bytes of a length."""
_OPTIONS: Final = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.min_reconnect_backoff_ms", int(FIRST_CONTACT * 1000)),  # which bounds an attempt to connect, too
]


class GrpcTransport:
    """A channel to a gRPC endpoint; each stream is one of its own.

    Args:
        url: e.g. "grpc://localhost:8001"; "grpcs" for TLS.
        headers: sent with each request.
        tls: for grpcs.
    """

    def __init__(self, url: str, headers: Mapping[str, str], tls: Tls) -> None:
        parts = urlsplit(url)
        self._metadata = [(name.lower(), value) for name, value in headers.items()]
        self.contact = Contact(url)
        if parts.scheme == "grpcs":
            self._channel = grpc.aio.secure_channel(parts.netloc, _credentials(tls), _OPTIONS)
        else:
            self._channel = grpc.aio.insecure_channel(parts.netloc, _OPTIONS)
        self._infer = self._channel.unary_unary(
            f"{_SERVICE}ModelInfer", None, pb.ModelInferResponse.FromString
        )
        self._stream = self._channel.stream_stream(
            f"{_SERVICE}ModelStreamInfer",
            pb.ModelInferRequest.SerializeToString,
            pb.ModelStreamInferResponse.FromString,
        )
        self.closing = self._channel.close

    async def close(self) -> None:
        await self.closing()

    async def live(self, timeout: float) -> bool:
        return bool((await self._call("ServerLive", pb.ServerLiveRequest(), timeout)).live)

    async def ready(self, model: str, version: str, timeout: float) -> bool:
        if not model:
            return bool((await self._call("ServerReady", pb.ServerReadyRequest(), timeout)).ready)
        request = pb.ModelReadyRequest(name=model, version=version)
        return bool((await self._call("ModelReady", request, timeout)).ready)

    async def describe(self, timeout: float) -> Mapping[str, Any]:
        return _as_dict(await self._call("ServerMetadata", pb.ServerMetadataRequest(), timeout))

    async def describe_model(
        self, model: str, version: str, timeout: float
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        metadata = await self._call(
            "ModelMetadata", pb.ModelMetadataRequest(name=model, version=version), timeout
        )
        config = await self._call("ModelConfig", pb.ModelConfigRequest(name=model, version=version), timeout)
        return _json(metadata), _json(config.config)

    def encoded(self, request: Request) -> Any:
        return encode_request(request)

    async def infer(self, encoded: Any, timeout: float) -> Response:
        try:
            answer = await self._infer(encoded, timeout=timeout, metadata=self._metadata)
            self.contact.made = True
        except grpc.aio.AioRpcError as error:
            raise self._failed(error) from None
        return read_response(answer)

    async def stream(self, request: Request, timeout: float) -> AsyncIterator[Response]:
        message = _message(request)
        message.parameters["triton_enable_empty_final_response"].bool_param = True
        call = self._stream(iter([message]), timeout=timeout, metadata=self._metadata)
        try:
            async for answer in call:
                self.contact.made = True
                if answer.error_message:
                    raise ServerError("UNKNOWN", answer.error_message)
                response = read_response(answer.infer_response)
                if response.arrays:
                    yield response
        except grpc.aio.AioRpcError as error:
            raise self._failed(error) from None
        finally:
            call.cancel()

    async def register(self, region: str, key: str, size: int, timeout: float) -> None:
        request = pb.SystemSharedMemoryRegisterRequest(name=region, key=key, offset=0, byte_size=size)
        await self._call("SystemSharedMemoryRegister", request, timeout)

    async def unregister(self, region: str, timeout: float) -> None:
        request = pb.SystemSharedMemoryUnregisterRequest(name=region)
        await self._call("SystemSharedMemoryUnregister", request, timeout)

    async def register_cuda(self, region: str, handle: bytes, device: int, size: int, timeout: float) -> None:
        request = pb.CudaSharedMemoryRegisterRequest(
            name=region, raw_handle=handle, device_id=device, byte_size=size
        )
        await self._call("CudaSharedMemoryRegister", request, timeout)

    async def unregister_cuda(self, region: str, timeout: float) -> None:
        request = pb.CudaSharedMemoryUnregisterRequest(name=region)
        await self._call("CudaSharedMemoryUnregister", request, timeout)

    async def statistics(self, model: str, version: str, timeout: float) -> Sequence[Mapping[str, Any]]:
        request = pb.ModelStatisticsRequest(name=model, version=version)
        answer = await self._call("ModelStatistics", request, timeout)
        return [_json(each, whole=True) for each in answer.model_stats]

    async def index(self, timeout: float) -> Sequence[Mapping[str, Any]]:
        answer = await self._call("RepositoryIndex", pb.RepositoryIndexRequest(), timeout)
        return [_as_dict(model) for model in answer.models]

    async def load(self, model: str, config: str, files: Mapping[str, bytes], timeout: float) -> None:
        request = pb.RepositoryModelLoadRequest(model_name=model)
        if config:
            request.parameters["config"].string_param = config
        for path, data in files.items():
            request.parameters[f"file:{path}"].bytes_param = data
        await self._call("RepositoryModelLoad", request, timeout)

    async def unload(self, model: str, timeout: float) -> None:
        await self._call("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name=model), timeout)

    async def feedback(
        self, model: str, version: str, records: Sequence[Mapping[str, Any]], timeout: float
    ) -> int:
        request = messages.FeedbackRequest(
            model_name=model, model_version=version, feedback=map(messages.record, records)
        )
        method = f"/{messages.SERVICE}/ModelFeedback"
        return int((await self._asked(method, request, messages.FeedbackResponse, timeout)).accepted)

    async def feedback_figures(self, model: str, timeout: float) -> Mapping[str, Any]:
        request = messages.FeedbackFiguresRequest(model_name=model)
        method = f"/{messages.SERVICE}/FeedbackFigures"
        answer = await self._asked(method, request, messages.FeedbackFiguresResponse, timeout)
        figures: Mapping[str, Any] = messages.plain(answer.figures)
        return figures

    async def _call(self, method: str, request: Any, timeout: float) -> Any:
        answer = getattr(pb, type(request).__name__.removesuffix("Request") + "Response")
        return await self._asked(_SERVICE + method, request, answer, timeout)

    async def _asked(self, path: str, request: Any, answer: Any, timeout: float) -> Any:
        call = self._channel.unary_unary(path, type(request).SerializeToString, answer.FromString)
        try:
            found = await call(request, timeout=timeout, metadata=self._metadata)
            self.contact.made = True
        except grpc.aio.AioRpcError as error:
            raise self._failed(error) from None
        return found

    def _failed(self, error: grpc.aio.AioRpcError) -> ServerError:
        failure = _error(error)
        self.contact.made |= not isinstance(failure, Unreachable | DeadlineExceeded)
        return failure


def _credentials(tls: Tls) -> grpc.ChannelCredentials:
    files = [None if path is None else Path(path).read_bytes() for path in (tls.ca, tls.key, tls.certificate)]
    return grpc.ssl_channel_credentials(*files)


def _as_dict(message: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    return found


def _json(message: Any, whole: bool = False) -> Mapping[str, Any]:
    """Return a message as it is over HTTP: 64-bit numbers as numbers, and what has its default too.

    With `whole` that is also true of messages in it that are not set.
    """
    fields: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name) and not whole:
            continue
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            element = field.message_type.fields_by_name["value"]
            fields[field.name] = {key: _value(element, each, whole) for key, each in value.items()}
        elif field.is_repeated:
            fields[field.name] = [_value(field, each, whole) for each in value]
        else:
            fields[field.name] = _value(field, value, whole)
    return fields


def _value(field: Any, value: Any, whole: bool) -> Any:
    if field.message_type is not None:
        return _json(value, whole)
    return value if field.enum_type is None else field.enum_type.values_by_number[value].name


def _error(error: grpc.aio.AioRpcError) -> ServerError:
    trailing = {key: value for key, value in error.trailing_metadata() or ()}
    try:
        retry_after = float(trailing.get("retry-after", 0))
    except (TypeError, ValueError):
        retry_after = 0.0
    details = error.details() or ""
    if details.startswith(_NO_CONNECTION):
        return Unreachable(error.code().name, details, retry_after)
    return server_error(error.code().name, details, retry_after)


def encode_request(request: Request) -> bytes:
    """Return what is sent of an inference; the tensors are copied once, not by protobuf three times."""
    parts: list[Any] = [_head(request).SerializeToString()]
    for data in _raw_contents(request):
        parts += (_RAW_INPUT_CONTENTS, _varint(len(data)), data)
    return b"".join(parts)


def _varint(number: int) -> bytes:
    """Return a number as protobuf writes it: seven bits a byte, the lowest first."""
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*written, number))


def _message(request: Request) -> pb.ModelInferRequest:
    message = _head(request)
    message.raw_input_contents.extend(data.tobytes() for data in _raw_contents(request))
    return message


def _raw_contents(request: Request) -> Sequence[memoryview]:
    return [entry.data for entry in request.inputs if not isinstance(entry.data, Slice)]


def _head(request: Request) -> pb.ModelInferRequest:
    """Return a request as its message, without the bytes of its tensors."""
    message = pb.ModelInferRequest(
        model_name=request.model,
        model_version=request.version,
        id=request.id,
        inputs=[_input(entry) for entry in request.inputs],
        outputs=[_output(output) for output in request.outputs],
    )
    for name, value in request.parameters.items():
        _set(message.parameters[name], value)
    return message


def _input(entry: Input) -> pb.ModelInferRequest.InferInputTensor:
    tensor = pb.ModelInferRequest.InferInputTensor(
        name=entry.name, datatype=entry.datatype, shape=entry.shape
    )
    if isinstance(entry.data, Slice):
        _set_place(tensor.parameters, entry.data)
    return tensor


def _output(output: Output) -> pb.ModelInferRequest.InferRequestedOutputTensor:
    tensor = pb.ModelInferRequest.InferRequestedOutputTensor(name=output.name)
    if output.place is not None:
        _set_place(tensor.parameters, output.place)
    if output.classes:
        tensor.parameters["classification"].int64_param = output.classes
    return tensor


def _set_place(parameters: Any, place: Slice) -> None:
    parameters["shared_memory_region"].string_param = place.region
    parameters["shared_memory_offset"].int64_param = place.offset
    parameters["shared_memory_byte_size"].int64_param = place.size


def _set(parameter: pb.InferParameter, value: Parameter) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = value


def read_response(message: pb.ModelInferResponse) -> Response:
    arrays, placed = {}, {}
    for output, raw in zip(message.outputs, chain(message.raw_output_contents, repeat(b"")), strict=False):
        shape = tuple(output.shape)
        if not raw and 0 not in shape:
            placed[output.name] = output.datatype, shape
        else:
            arrays[output.name] = decode(raw, output.datatype, shape)
    return Response(
        message.model_name,
        message.model_version,
        message.id,
        arrays,
        placed,
        {
            name: getattr(value, value.WhichOneof("parameter_choice"))
            for name, value in message.parameters.items()
        },
    )
