"""The gRPC front: `inference.GRPCInferenceService` and `grpc.health.v1.Health`.

Handlers are registered generically and the inference ones take and give bytes, so that the codec decides what
protobuf gets to see. A method that is not registered answers UNIMPLEMENTED by itself.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic, monotonic_ns
from typing import Any, Final, NamedTuple, NoReturn

import grpc
import grpc.aio

from app.core.errors import ErrorCode, FailureReason, InferError, unavailable
from app.core.live_settings import LiveSettings
from app.core.tensors import Buffer, InferRequest, InferResponse
from app.ingress.grpc.management import management_rpcs
from app.ingress.grpc.restrictions_aio import RestrictedProtocols
from app.ingress.grpc.settings import GrpcSettings
from app.ingress.grpc.stream import Forward, InferStream, StreamCall
from app.ingress.http2.call import DirectCall
from app.ingress.http2.server import Http2Server
from app.ingress.net.slow_clients import SendBufferLimit
from app.ingress.service.interface import InferenceService
from app.ingress.tracing.observer import Observer, RequestOrigin
from app.protocol.grpc.request_template import read_infer
from app.protocol.grpc.v2 import encode_infer, encode_stream
from app.protocol.restrictions import Category, Restriction
from app.protocol.status import grpc_status
from app.routing.table import VersionEntry

SHUTDOWN_TEXT: Final = "GRPC server is shutting down and has stopped accepting new requests."

_log = logging.getLogger(__name__)
_INFERENCE: Final = "inference.GRPCInferenceService"
_HEALTH: Final = "grpc.health.v1.Health"
_REFLECTION_PATH: Final = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
_WATCH_S: Final = 1.0
"""How often a watched health is looked at."""
# HealthCheckResponse{status: SERVING | NOT_SERVING}: one enum field, not worth a dependency.
_SERVING: Final = b"\x08\x01"
_NOT_SERVING: Final = b"\x08\x02"
_STATUS_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
# A status travels in trailers, which clients refuse from 8 to 16 KB on; a character may take 3 bytes there.
_MAX_DETAILS: Final = 4000
_COPIES: Final = 2
"""What grpc.aio holds of an answer on its way: the bytes, and the core's slices."""
_COUNTED: Final = 64 << 10
"""Below, the bound of calls bounds the bytes."""
_UNARY: Final = "ModelInfer RPC"
"""What Triton's refusal of a decoupled model calls the method."""
_UNEXPECTED: Final = "the server failed to handle the request; its log has the details"

Context = Any


class Method(NamedTuple):
    """The handler of an RPC with the category that restricts it."""

    category: Category
    handler: Any


class GrpcFront:
    """Serves an `InferenceService` over gRPC; lives on the event loop it is started on."""

    def __init__(
        self,
        service: InferenceService,
        settings: GrpcSettings | None = None,
        observer: Observer | None = None,
        unsent: SendBufferLimit | None = None,
    ) -> None:
        self._unsent = unsent or SendBufferLimit()
        self._observer = observer or Observer(LiveSettings())
        self._service = service
        self._settings = settings or GrpcSettings()
        self._forwarder = self._settings.forwarder
        self._max_bytes = self._settings.max_message_bytes
        self._server: Any = None
        self._stopping = asyncio.Event()
        self._streams: set[InferStream] = set()

    async def start(self, address: str, port: int, reuse_port: bool = True) -> int:
        """Listen.

        Args:
            address: host name or IP address; IPv6 in brackets.
            port: 0 picks a free one.
            reuse_port: let several processes listen on the port.

        Returns:
            The port.

        Raises:
            OSError: the address cannot be bound, or a certificate's file not be read.
        """
        settings = self._settings
        if settings.http2:
            self._server = Http2Server(settings.http2_limits(), self._restricted(), self._unsent)
            self._server.add_direct_method(f"/{_INFERENCE}/ModelInfer", self._begin_infer)
            self._add_services()
            tls = settings.certificates.context("h2") if settings.certificates else None
            return int(await self._server.listen(address, port, reuse_port, tls))
        self._server = grpc.aio.server(
            options=settings.channel_options(reuse_port),
            maximum_concurrent_rpcs=settings.concurrent_rpcs,
            interceptors=[RestrictedProtocols(self._restricted())] if settings.restrictions else None,
        )
        self._add_services()
        credentials = settings.credentials()
        try:
            bound = self._bind(f"{address}:{port}", credentials)
        except RuntimeError as error:
            raise OSError(f"cannot listen for gRPC on {address}:{port}: {error}") from None
        await self._server.start()
        return bound

    def _add_services(self) -> None:
        for service, methods in self.methods().items():
            handlers = {name: method.handler for name, method in methods.items()}
            generic = grpc.method_handlers_generic_handler(service, handlers)
            self._server.add_generic_rpc_handlers([generic])
        if self._settings.reflection:
            _reflect(self._server)

    def _bind(self, target: str, credentials: Any) -> int:
        if credentials is None:
            return int(self._server.add_insecure_port(target))
        return int(self._server.add_secure_port(target, credentials))

    async def stop(self, grace_s: float) -> None:
        """Stop listening; refuse new requests; end RPCs under way after `grace_s` seconds at most."""
        self._stopping.set()
        for stream in self._streams:
            stream.drain(unavailable(SHUTDOWN_TEXT).failure)
        if self._server is not None:
            await self._server.stop(grace_s)

    def methods(self) -> dict[str, dict[str, Method]]:
        """Return the RPCs by service and name."""
        managed = management_rpcs(self._service, self._observer).items()
        return {
            _INFERENCE: {
                **{
                    name: Method(rpc.category, _unary(rpc.handler, rpc.request_class))
                    for name, rpc in managed
                },
                "ModelInfer": Method("inference", grpc.unary_unary_rpc_method_handler(self._infer)),
                "ModelStreamInfer": Method(
                    "inference", grpc.stream_stream_rpc_method_handler(self._stream_infer)
                ),
            },
            _HEALTH: {
                "Check": Method("health", _unary(self._check_health)),
                "Watch": Method("health", grpc.unary_stream_rpc_method_handler(self._watch_health)),
            },
        }

    def _restricted(self) -> dict[str, Restriction]:
        """Return the restriction of each restricted RPC by its path."""
        categories: dict[str, Category] = {_REFLECTION_PATH: "metadata"}
        for service, methods in self.methods().items():
            categories |= {f"/{service}/{name}": method.category for name, method in methods.items()}
        restrictions = self._settings.restrictions
        return {
            path: restrictions[category] for path, category in categories.items() if category in restrictions
        }

    async def _check_health(self, data: bytes) -> bytes:
        return self._health()

    async def _watch_health(self, data: bytes, context: Context) -> None:
        told = b""
        while True:
            health = self._health()
            if health != told:
                await context.write(health)
                told = health
            if self._stopping.is_set():
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_S):
                    await self._stopping.wait()

    def _health(self) -> bytes:
        return _SERVING if self._service.ready() and not self._is_stopping() else _NOT_SERVING

    def _begin_infer(self, call: DirectCall, data: Buffer) -> None:
        """ModelInfer without a task: submitted here, answered from the service's sink."""
        try:
            request, arrival = self._take(data, call)
            service = self._service
            entry = service.resolve_single(request.model_name, request.model_version, _UNARY)
            answer = partial(self._answer, call, entry, request)
            if arrival is None:
                call.on_cancel = service.submit(entry, request, answer).cancel
            else:
                call.on_cancel = self._observer.submit(service, entry, request, answer, arrival).cancel
        except Exception as error:
            call.fail(*_status_of(error))

    def _answer(
        self, call: DirectCall, entry: VersionEntry, request: InferRequest, response: InferResponse
    ) -> None:
        if call.over:
            return
        try:
            response.raise_error()
            parts = encode_infer(request, response, entry, self._max_bytes)
        except Exception as error:
            call.fail(*_status_of(error))
        else:
            call.answer(parts)

    async def _infer(self, data: bytes, context: Context) -> bytes:
        """ModelInfer for grpc.aio."""
        try:
            request, arrival = self._take(data, context)
            entry = self._service.resolve_single(request.model_name, request.model_version, _UNARY)
            if arrival is None:
                response = await self._service.infer(entry, request)
            else:
                response = await self._observer.infer(self._service, entry, request, arrival)
            answer = b"".join(encode_infer(request, response, entry, self._max_bytes))
            self._count(answer, context)
            return answer
        except Exception as error:
            await _abort(context, error)

    def _count(self, answer: bytes, context: Context) -> None:
        """Count an answer, for grpc.aio, until its call is over: it keeps all that it has begun to send.

        Raises:
            InferError: UNAVAILABLE when too much waits for slow clients already.
        """
        size = _COPIES * len(answer)
        if size < _COUNTED:
            return
        if not self._unsent.keep(size):
            _log.warning("an answer of %d bytes is not sent: others wait for slow clients", len(answer))
            raise unavailable("too many bytes of answers wait for clients that do not take them")
        context.add_done_callback(lambda _: self._unsent.release(size))

    def _take(self, data: Buffer, context: Context) -> tuple[InferRequest, RequestOrigin | None]:
        """Decode a request; with it, if anybody takes note of requests, how it came."""
        self._refuse_when_stopping()
        arrival = _arrival(context) if self._observer.on else None
        request = read_infer(data, _deadline(context))
        if self._forwarder is not None:
            request = self._forwarder.into(request, _text_metadata(context))
        return request, arrival

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
            partial(encode_stream, max_bytes=self._max_bytes),
            self._settings.stream,
            StreamCall(
                _deadline(context),
                fail_fast=_has_metadata(context, "triton_grpc_error", "true"),
                forward=self._forward_of(context),
                traceparent=_traceparent(context),
            ),
            self._observer,
            self._unsent,
        )
        self._streams.add(stream)
        return stream

    def _forward_of(self, context: Context) -> Forward | None:
        if self._forwarder is None:
            return None
        return partial(self._forwarder.into, headers=_text_metadata(context))

    async def _read(self, requests: Any, stream: InferStream) -> None:
        try:
            async for data in requests:
                if self._is_stopping():
                    stream.drain(unavailable(SHUTDOWN_TEXT).failure)
                stream.accept(data)
                await stream.room()
            stream.end()
        except Exception as error:
            stream.fail(error)

    def _is_stopping(self) -> bool:
        return self._stopping.is_set() or self._service.exiting()

    def _refuse_when_stopping(self) -> None:
        if self._is_stopping():
            raise unavailable(SHUTDOWN_TEXT)


def _unary(rpc: Callable[[Any], Awaitable[Any]], request_class: Any = None) -> Any:
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
    """End the RPC with the status of an error."""
    code, details = _status_of(error)
    await context.abort(_STATUS_CODES[code], details)
    raise AssertionError("abort raises")


def _status_of(error: Exception) -> tuple[int, str]:
    """The status of an error, and its text; a request that was cancelled has none, as in Triton."""
    details = _UNEXPECTED
    if isinstance(error, InferError):
        cancelled = error.code is ErrorCode.CANCELLED and error.reason is not FailureReason.BACKEND
        details = "" if cancelled else error.message[:_MAX_DETAILS]
    else:
        _log.error("gRPC request failed", exc_info=error)
    return grpc_status(error), details


def _deadline(context: Context) -> float:
    remaining = context.time_remaining()
    return 0.0 if remaining is None else monotonic() + remaining


def _arrival(context: Context) -> RequestOrigin:
    return RequestOrigin("grpc", monotonic_ns(), _traceparent(context))


def _traceparent(context: Context) -> str:
    return next((str(value) for name, value in context.invocation_metadata() if name == "traceparent"), "")


def _has_metadata(context: Context, key: str, value: str) -> bool:
    return any(name == key and found == value for name, found in context.invocation_metadata())


def _text_metadata(context: Context) -> list[tuple[str, str]]:
    """The call's metadata but for binary ones, which no string can hold."""
    return [(name, value) for name, value in context.invocation_metadata() if isinstance(value, str)]


def _reflect(server: Any) -> None:
    from grpc_reflection.v1alpha import _async, reflection, reflection_pb2_grpc

    servicer = _async.ReflectionServicer(service_names=(_INFERENCE, reflection.SERVICE_NAME))
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)
