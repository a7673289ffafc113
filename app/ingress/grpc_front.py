"""The gRPC front: `inference.GRPCInferenceService` and `grpc.health.v1.Health` over grpc.aio.

Handlers are registered generically and the inference ones take and give bytes, so that the codec decides what
protobuf gets to see. A method that is not registered answers UNIMPLEMENTED by itself.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, Final, NoReturn

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2 as pb

from app.core.errors import ErrorCode, InferError, unavailable
from app.core.tensors import InferResponse, Tensor
from app.ingress.grpc_shared_memory import shared_memory_rpcs
from app.ingress.grpc_stream import InferStream, StreamLimits
from app.ingress.service import InferenceService
from app.protocol.classification import classify
from app.protocol.grpc_repository import decode_load, decode_unload, refuse_repository_name
from app.protocol.grpc_v2 import MAX_MESSAGE_BYTES, decode_infer, encode_infer, encode_stream, parse_infer
from app.protocol.status import grpc_status

SHUTDOWN_TEXT: Final = "GRPC server is shutting down and has stopped accepting new requests."

_log = logging.getLogger(__name__)
_INFERENCE: Final = "inference.GRPCInferenceService"
_HEALTH: Final = "grpc.health.v1.Health"
# HealthCheckResponse{status: SERVING | NOT_SERVING}: one enum field, not worth a dependency.
_SERVING: Final = b"\x08\x01"
_NOT_SERVING: Final = b"\x08\x02"
_STATUS_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
# A status travels in trailers, which clients refuse from 8 to 16 KB on; a character may take 3 bytes there.
_MAX_DETAILS: Final = 4000
_UNEXPECTED: Final = "the server failed to handle the request; its log has the details"

Context = Any
Rpc = Callable[[Any], Awaitable[Any]]


@dataclass(frozen=True)
class GrpcSettings:
    """Settings of the gRPC server; the keepalive ones have tritonserver's flags and defaults.

    Attributes:
        concurrent_rpcs: RPCs under way at once, streams included; further ones get RESOURCE_EXHAUSTED.
        stream: bounds of one ModelStreamInfer call.
        keepalive_time_ms, keepalive_timeout_ms: when to ping an idle client, and how long to wait for it.
        keepalive_without_calls: whether to ping a client that has no RPC under way.
        max_pings_without_data, min_ping_interval_ms, max_ping_strikes: how many pings each side may send.
        max_connection_age_ms, max_connection_age_grace_ms: when to close a connection; 0 for never.
    """

    concurrent_rpcs: int = 65536
    stream: StreamLimits = field(default_factory=StreamLimits)
    keepalive_time_ms: int = 7_200_000
    keepalive_timeout_ms: int = 20_000
    keepalive_without_calls: bool = False
    max_pings_without_data: int = 2
    min_ping_interval_ms: int = 300_000
    max_ping_strikes: int = 2
    max_connection_age_ms: int = 0
    max_connection_age_grace_ms: int = 0


def _channel_options(settings: GrpcSettings, reuse_port: bool) -> list[tuple[str, int]]:
    options = [
        ("grpc.so_reuseport", int(reuse_port)),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", settings.keepalive_time_ms),
        ("grpc.keepalive_timeout_ms", settings.keepalive_timeout_ms),
        ("grpc.keepalive_permit_without_calls", int(settings.keepalive_without_calls)),
        ("grpc.http2.max_pings_without_data", settings.max_pings_without_data),
        ("grpc.http2.min_ping_interval_without_data_ms", settings.min_ping_interval_ms),
        ("grpc.http2.max_ping_strikes", settings.max_ping_strikes),
    ]
    if settings.max_connection_age_ms:
        options.append(("grpc.max_connection_age_ms", settings.max_connection_age_ms))
    if settings.max_connection_age_grace_ms:
        options.append(("grpc.max_connection_age_grace_ms", settings.max_connection_age_grace_ms))
    return options


class GrpcFront:
    """Serves an `InferenceService` over gRPC; lives on the event loop it is started on."""

    def __init__(self, service: InferenceService, settings: GrpcSettings | None = None) -> None:
        self._service = service
        self._settings = settings or GrpcSettings()
        self._server: Any = None
        self._stopping = False
        self._streams: set[InferStream] = set()

    async def start(self, address: str, port: int, reuse_port: bool = True) -> int:
        """Listen, without TLS.

        Args:
            address: host name or IP address; IPv6 in brackets.
            port: 0 picks a free one.
            reuse_port: let several processes listen on the port.

        Returns:
            The port.

        Raises:
            OSError: the address cannot be bound.
        """
        self._server = grpc.aio.server(
            options=_channel_options(self._settings, reuse_port),
            maximum_concurrent_rpcs=self._settings.concurrent_rpcs,
        )
        self._server.add_generic_rpc_handlers(self._services())
        try:
            bound = int(self._server.add_insecure_port(f"{address}:{port}"))
        except RuntimeError as error:
            raise OSError(f"cannot listen for gRPC on {address}:{port}: {error}") from None
        await self._server.start()
        return bound

    async def stop(self, grace_s: float) -> None:
        """Stop listening; refuse new requests; end RPCs under way after `grace_s` seconds at most."""
        self._stopping = True
        for stream in self._streams:
            stream.drain(unavailable(SHUTDOWN_TEXT))
        if self._server is not None:
            await self._server.stop(grace_s)

    def _services(self) -> list[Any]:
        return [
            grpc.method_handlers_generic_handler(_INFERENCE, self._inference_methods()),
            grpc.method_handlers_generic_handler(_HEALTH, {"Check": _unary(self._check_health)}),
        ]

    def _inference_methods(self) -> dict[str, Any]:
        return {
            "ServerLive": _unary(self._server_live, pb.ServerLiveRequest),
            "ServerReady": _unary(self._server_ready, pb.ServerReadyRequest),
            "ModelReady": _unary(self._model_ready, pb.ModelReadyRequest),
            "ServerMetadata": _unary(self._server_metadata, pb.ServerMetadataRequest),
            "ModelMetadata": _unary(self._model_metadata, pb.ModelMetadataRequest),
            "ModelConfig": _unary(self._model_config, pb.ModelConfigRequest),
            "ModelStatistics": _unary(self._statistics, pb.ModelStatisticsRequest),
            "RepositoryIndex": _unary(self._index, pb.RepositoryIndexRequest),
            "RepositoryModelLoad": _unary(self._load, pb.RepositoryModelLoadRequest),
            "RepositoryModelUnload": _unary(self._unload, pb.RepositoryModelUnloadRequest),
            **{name: _unary(*rpc) for name, rpc in shared_memory_rpcs(self._service).items()},
            "ModelInfer": grpc.unary_unary_rpc_method_handler(self._infer),
            "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(self._stream_infer),
        }

    async def _server_live(self, message: pb.ServerLiveRequest) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=self._service.live())

    async def _server_ready(self, message: pb.ServerReadyRequest) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=self._service.ready())

    async def _model_ready(self, message: pb.ModelReadyRequest) -> pb.ModelReadyResponse:
        return pb.ModelReadyResponse(ready=self._service.model_ready(message.name, message.version))

    async def _server_metadata(self, message: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:
        return self._service.server_metadata()

    async def _model_metadata(self, message: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
        return self._service.model_metadata(message.name, message.version)

    async def _model_config(self, message: pb.ModelConfigRequest) -> pb.ModelConfigResponse:
        return pb.ModelConfigResponse(config=self._service.model_config(message.name, message.version))

    async def _statistics(self, message: pb.ModelStatisticsRequest) -> pb.ModelStatisticsResponse:
        return await self._service.statistics(message.name, message.version)

    async def _index(self, message: pb.RepositoryIndexRequest) -> pb.RepositoryIndexResponse:
        refuse_repository_name(message.repository_name)
        return await self._service.repository_index(message.ready)

    async def _load(self, message: pb.RepositoryModelLoadRequest) -> pb.RepositoryModelLoadResponse:
        config, files = decode_load(message)
        await self._service.load_model(message.model_name, config, files)
        return pb.RepositoryModelLoadResponse()

    async def _unload(self, message: pb.RepositoryModelUnloadRequest) -> pb.RepositoryModelUnloadResponse:
        unload_dependents = decode_unload(message)
        await self._service.unload_model(message.model_name, unload_dependents)
        return pb.RepositoryModelUnloadResponse()

    async def _check_health(self, data: bytes) -> bytes:
        return _SERVING if self._service.ready() else _NOT_SERVING

    async def _infer(self, data: bytes, context: Context) -> bytes:
        try:
            self._refuse_when_stopping()
            message, raw = parse_infer(data)
            request = decode_infer(message, raw, _deadline(context))
            response = await self._service.infer(request)
            return encode_infer(request, response, partial(self._classify, response))
        except Exception as error:
            await _abort(context, error)

    async def _stream_infer(self, requests: Any, context: Context) -> None:
        stream = self._new_stream(context)
        reader = asyncio.create_task(self._read(requests, stream))
        try:
            while (message := await stream.next()) is not None:
                await context.write(message)
        except grpc.aio.InternalError:
            _log.debug("the client of a stream went away during a write")
        except Exception as error:
            await _abort(context, error)
        finally:
            self._streams.discard(stream)
            reader.cancel()
            stream.cancel()

    def _new_stream(self, context: Context) -> InferStream:
        stream = InferStream(
            self._service,
            lambda request, response: encode_stream(request, response, partial(self._classify, response)),
            self._settings.stream,
            _deadline(context),
            fail_fast=_has_metadata(context, "triton_grpc_error", "true"),
        )
        self._streams.add(stream)
        return stream

    async def _read(self, requests: Any, stream: InferStream) -> None:
        try:
            async for data in requests:
                if self._is_stopping():
                    stream.drain(unavailable(SHUTDOWN_TEXT))
                stream.accept(data)
                await stream.room()
            stream.end()
        except Exception as error:
            stream.fail(error)

    def _classify(self, response: InferResponse, tensor: Tensor, count: int) -> Tensor:
        model, version = response.model_name, response.model_version
        batched = self._service.model_config(model, version).max_batch_size > 0
        return classify(tensor, count, self._service.labels(model, version, tensor.name), batched)

    def _is_stopping(self) -> bool:
        return self._stopping or self._service.exiting()

    def _refuse_when_stopping(self) -> None:
        if self._is_stopping():
            raise unavailable(SHUTDOWN_TEXT)


def _unary(rpc: Rpc, request_class: Any = None) -> Any:
    """Make the handler of a request-response method; without a request class it takes and gives bytes."""

    async def handle(message: Any, context: Context) -> Any:
        try:
            return await rpc(message)
        except Exception as error:
            await _abort(context, error)

    if request_class is None:
        return grpc.unary_unary_rpc_method_handler(handle)
    return grpc.unary_unary_rpc_method_handler(handle, request_class.FromString, _serialize)


def _serialize(message: Any) -> bytes:
    return bytes(message.SerializeToString())


async def _abort(context: Context, error: Exception) -> NoReturn:
    """End the RPC with the status of an error; a cancelled one has no text, as in Triton."""
    details = _UNEXPECTED
    if isinstance(error, InferError):
        details = "" if error.code is ErrorCode.CANCELLED else error.message[:_MAX_DETAILS]
    else:
        _log.error("gRPC request failed", exc_info=error)
    await context.abort(_STATUS_CODES[grpc_status(error)], details)
    raise AssertionError("abort raises")


def _deadline(context: Context) -> float:
    remaining = context.time_remaining()
    return 0.0 if remaining is None else monotonic() + remaining


def _has_metadata(context: Context, key: str, value: str) -> bool:
    return any(name == key and found == value for name, found in context.invocation_metadata())
