"""The gRPC front: serves `inference.GRPCInferenceService` and `grpc.health.v1.Health`."""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from time import monotonic_ns
from typing import Final

from app.core.errors import Failure, InferError, unavailable
from app.core.inference import Sink
from app.core.observability.live_settings import LiveSettings
from app.core.system.tasks import Tasks
from app.core.tensors import Buffer, InferRequest, InferResponse
from app.ingress.access.grpc import guarded_method
from app.ingress.access.guard import Guard
from app.ingress.grpc.drift import drift_methods
from app.ingress.grpc.feedback import SERVICE as FEEDBACK
from app.ingress.grpc.feedback import feedback_methods
from app.ingress.grpc.health import HealthService
from app.ingress.grpc.management import management_rpcs
from app.ingress.grpc.rollout import rollout_methods
from app.ingress.grpc.rpc import Method
from app.ingress.grpc.stream import Forward, InferStream, StreamOptions
from app.ingress.http2.call import GrpcCall, UnaryCall
from app.ingress.http2.server import Http2Server
from app.ingress.http2.streaming_call import StreamingCall
from app.ingress.net.slow_clients import SendBufferLimit
from app.ingress.service.interface import InferenceService
from app.ingress.tracing.observer import Observer, RequestOrigin
from app.protocol.grpc.drift import SERVICE as DRIFT
from app.protocol.grpc.request_message import decode_request
from app.protocol.grpc.responses import encode_infer, encode_stream
from app.protocol.grpc.rollout import SERVICE as ROLLOUTS
from app.routing.canary import heed_headers
from app.routing.table import NotLoaded, VersionEntry
from app.settings.fronts import GrpcSettings

SHUTDOWN_TEXT: Final = "GRPC server is shutting down and has stopped accepting new requests."

_INFERENCE: Final = "inference.GRPCInferenceService"
_DEFAULTS: Final = GrpcSettings()
_UNARY: Final = "ModelInfer RPC"

Respond = Callable[[UnaryCall, VersionEntry, InferRequest, InferResponse], None]
DecodeRequest = Callable[[Buffer, float], InferRequest]
MakeSink = Callable[[Respond, UnaryCall, VersionEntry, InferRequest], Sink]
"""Makes a sink from what responds and its arguments in front of the response."""


class GrpcFront:
    """Serves an `InferenceService` over gRPC, on the event loop that `start` runs on."""

    name = "grpc"
    service = "gRPC service connections and inference handlers"

    def __init__(
        self,
        service: InferenceService,
        settings: GrpcSettings = _DEFAULTS,
        observer: Observer | None = None,
        send_buffers: SendBufferLimit | None = None,
        guard: Guard | None = None,
        data_plane: str = "auto",
        elsewhere: str = "",
    ) -> None:
        self._guard = guard
        self._elsewhere = elsewhere
        self._data_plane = data_plane
        self._decode: DecodeRequest = decode_request
        self._make_sink: MakeSink = partial
        self._send_buffers = send_buffers or SendBufferLimit()
        self._observer = observer or Observer(LiveSettings())
        self._service = service
        self._settings = settings
        self._forwarder = settings.forwarder
        self._max_bytes = settings.http2.max_message_size
        self._server: Http2Server | None = None
        self._stopping = asyncio.Event()
        self._streams: set[InferStream] = set()
        self._waiting = Tasks()

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
        certificates = self._settings.certificates
        tls = certificates.context("h2") if certificates else None
        server = self._server = self.new_server()
        return await server.listen(address, port, reuse_port, tls)

    def new_server(self) -> Http2Server:
        """Return a server of the methods that does not listen yet."""
        methods, required = self.methods(), self._settings.restrictions
        restricted = {p: required[m.category] for p, m in methods.items() if m.category in required}
        openers = {p: guarded_method(self._guard, m.ask, m.open_call) for p, m in methods.items()}
        server = Http2Server(
            *(self._settings.http2, openers, restricted),
            *(self._send_buffers, self._data_plane, self._elsewhere),
        )
        self.use_compiled(server)
        return server

    def use_compiled(self, server: Http2Server) -> None:
        """Have C read most requests and write most responses, if it may; see `app/native/__init__.py`."""
        compiled = server.state.compiled
        if compiled is None:
            return
        self._decode = compiled.read
        if not server.state.compresses:
            self._make_sink = compiled.sink

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return 0 if self._server is None else len(self._server.state.connections)

    @property
    def refusals(self) -> int:
        """Number of connections refused at `--max-connections` since the start."""
        return 0 if self._server is None else self._server.state.refusals

    async def stop(self, grace_s: float) -> None:
        """Stop listening; refuse new requests; end RPCs in flight after `grace_s` seconds at most."""
        self._stopping.set()
        for stream in self._streams:
            stream.drain(unavailable(SHUTDOWN_TEXT).failure)
        if self._server is not None:
            await self._server.stop(grace_s)

    def methods(self) -> dict[str, Method]:
        """Return the methods by path."""
        methods = {
            "ModelInfer": Method("inference", partial(UnaryCall, self._infer)),
            "ModelStreamInfer": Method("inference", partial(StreamingCall, self._stream_infer)),
        }
        for name, rpc in management_rpcs(self._service, self._observer).items():
            methods[name] = rpc.method()
        found = {f"/{_INFERENCE}/{name}": method for name, method in methods.items()}
        found |= HealthService(self._is_serving, self._stopping).methods()
        found |= rollout_methods(self._service) | feedback_methods(self._service)
        found |= drift_methods(self._service)
        if self._settings.tfserving:
            from app.ingress.grpc.tfserving import tfserving_methods

            found |= tfserving_methods(self._service)
        if self._settings.reflection:
            from app.ingress.grpc.reflection import reflection_methods

            found |= reflection_methods(_INFERENCE, ROLLOUTS, FEEDBACK, DRIFT)
        return found

    def _infer(self, call: UnaryCall, data: Buffer) -> None:
        """Submit a ModelInfer request; `_deliver` is its sink."""
        try:
            if self._is_stopping():
                raise unavailable(SHUTDOWN_TEXT)
            origin = _origin(call) if self._observer.enabled else None
            request = self._decode(data, call.deadline)
            if self._forwarder is not None:
                request = self._forwarder.forward(request, _text_metadata(call))
            service = self._service
            entry = service.resolve_single(request.model_name, request.model_version, _UNARY)
            if entry.split is not None:
                request = heed_headers(entry.split, request, _text_metadata(call))
            sink = self._make_sink(self._deliver, call, entry, request)
            if origin is None:
                call.on_cancel = service.submit(entry, request, sink).cancel
            else:
                call.on_cancel = self._observer.observe(service, entry, request, sink, origin).cancel
        except NotLoaded as idle:
            self._infer_loaded(call, data, idle.entry)
        except Exception as error:
            call.fail(error)

    def _infer_loaded(self, call: UnaryCall, data: Buffer, entry: VersionEntry) -> None:
        """Submit a request again when an idle version is loaded."""
        task = self._waiting.start(self._service.wait_loaded(entry))
        call.on_cancel = task.cancel

        def loaded(task: asyncio.Task[None]) -> None:
            if task.cancelled() or call.over:
                return
            try:
                task.result()
            except Exception as error:
                call.fail(error)
            else:
                self._infer(call, data)

        task.add_done_callback(loaded)

    def _deliver(
        self, call: UnaryCall, entry: VersionEntry, request: InferRequest, response: InferResponse
    ) -> None:
        if call.over:
            return
        if response.failure is not None:
            call.fail(response.failure)
            return
        try:
            parts = encode_infer(request, response, entry, self._max_bytes)
        except Exception as error:
            call.fail(error)
        else:
            call.respond(parts)

    async def _stream_infer(self, requests: AsyncIterator[Buffer], call: StreamingCall) -> None:
        stream = self._new_stream(call)
        reader = asyncio.create_task(self._read(requests, stream))
        try:
            while (message := await stream.next()) is not None:
                await call.write(message)
        finally:
            self._streams.discard(stream)
            reader.cancel()
            stream.cancel()

    def _new_stream(self, call: StreamingCall) -> InferStream:
        stream = InferStream(
            self._service,
            partial(encode_stream, max_bytes=self._max_bytes),
            self._settings.stream,
            StreamOptions(
                call.deadline,
                fail_fast=_has_metadata(call, "triton_grpc_error", "true"),
                forward=self._forward_of(call),
                metadata=partial(_text_metadata, call),
                traceparent=_traceparent(call),
            ),
            self._observer,
            self._send_buffers,
        )
        self._streams.add(stream)
        return stream

    def _forward_of(self, call: StreamingCall) -> Forward | None:
        if self._forwarder is None:
            return None
        return partial(self._forwarder.forward, headers=_text_metadata(call))

    async def _read(self, requests: AsyncIterator[Buffer], stream: InferStream) -> None:
        try:
            async for data in requests:
                if self._is_stopping():
                    stream.drain(unavailable(SHUTDOWN_TEXT).failure)
                await self._accept(stream, data)
                await stream.wait_for_slot()
            stream.end()
        except Exception as error:
            stream.fail(error)

    async def _accept(self, stream: InferStream, data: Buffer) -> None:
        """Submit a request of a stream; those after it wait while a version has yet to be loaded for it."""
        refused: Failure | None = None
        while True:
            try:
                stream.accept(data, refused)
                return
            except NotLoaded as idle:
                try:
                    await self._service.wait_loaded(idle.entry)
                except InferError as error:
                    refused = error.failure

    def _is_serving(self) -> bool:
        return self._service.ready() and not self._is_stopping()

    def _is_stopping(self) -> bool:
        return self._stopping.is_set() or self._service.exiting()


def _origin(call: UnaryCall) -> RequestOrigin:
    return RequestOrigin("grpc", monotonic_ns(), _traceparent(call))


def _traceparent(call: GrpcCall) -> str:
    return next((str(value) for name, value in call.metadata if name == "traceparent"), "")


def _has_metadata(call: GrpcCall, key: str, value: str) -> bool:
    return any(name == key and found == value for name, found in call.metadata)


def _text_metadata(call: GrpcCall) -> list[tuple[str, str]]:
    """Return the call's metadata without binary values, which cannot be request parameters."""
    return [(name, value) for name, value in call.metadata if isinstance(value, str)]
