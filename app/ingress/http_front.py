"""The HTTP front: inference on the short way, everything else through the REST application.

An inference is decoded, submitted, and answered from the service's sink: no task, no event loop turn of its
own. Only what would hold up the loop (decompression, much JSON) is done in a thread.
"""

import asyncio
import re
import ssl
from collections.abc import Callable
from functools import partial
from time import monotonic_ns
from typing import Any, Final, Protocol

from app.core.errors import InferError, internal, unsupported
from app.core.live_settings import LiveSettings
from app.core.tensors import Buffer, InferRequest, InferResponse
from app.ingress.asgi import AsgiApp, AsgiRoute
from app.ingress.http_exchange import METHOD_NOT_ALLOWED, Exchange, FixedRoute, Route
from app.ingress.http_generate import GenerateRoute
from app.ingress.http_server import HttpServer, HttpSettings
from app.ingress.observer import Arrival, Observer
from app.ingress.rest_api import build_rest_api
from app.ingress.service import Call, InferenceService, Sink
from app.protocol.content_coding import compress, decompress, response_encoding
from app.protocol.forwarding import HeaderForwarder
from app.protocol.http1 import RequestHead
from app.protocol.http_v2 import (
    DEFAULT_MAX_INPUT_SIZE,
    JSON_HEADERS,
    Classes,
    EncodedResponse,
    HttpInfer,
    decode_infer,
    decode_raw,
    encode_error,
    encode_infer,
    parse_header_length,
)
from app.protocol.restrictions import Restrictions, category_of_path

_INFER_PATH: Final = re.compile(r"/v2/models/([^/]+)(?:/versions/([0-9]+))?/(infer|generate|generate_stream)")
_HEAVY: Final = 256 << 10
"""Bytes of JSON or of compressed data from which a thread does the work."""


class InferRoute:
    """`POST /v2/models/<model>[/versions/<version>]/infer`."""

    def __init__(self, front: "HttpFront", head: RequestHead, model: str, version: str) -> None:
        self.front = front
        self.model = model
        self.version = version
        self.encoding = response_encoding(head.get(b"accept-encoding"))
        self._header_length = head.get(b"inference-header-content-length")
        self._traceparent = head.get(b"traceparent") or ""
        given = head.get(b"content-encoding")
        content_encoding = "identity" if given is None else given
        self._compressed = content_encoding in ("gzip", "deflate")
        self._json_length = self._known_json_length(head.content_length)
        self._unsupported: InferError | None = None
        if not self._compressed and content_encoding != "identity":
            self._unsupported = unsupported("Unsupported compression type")

    def start(self, exchange: Exchange, body: memoryview) -> None:
        """Decode and submit."""
        service = self.front.service
        config = service.model_config(self.model, self.version)
        if config.model_transaction_policy.decoupled:
            raise unsupported("HTTP end point doesn't support models with decoupled transaction policy")
        if self._unsupported is not None:
            exchange.fail(self._unsupported, b"Accept-Encoding: gzip, deflate\r\n")
        elif self._compressed or self._json_size(body) > _HEAVY:
            self.front.run_in_thread(
                exchange, lambda: self.decode(body, config), lambda infer: self.submit(exchange, infer)
            )
        else:
            self.submit(exchange, self.decode(body, config))

    def _known_json_length(self, content_length: int | None) -> int | None:
        """Return the length of the JSON part if the head alone tells it for sure."""
        if self._compressed or content_length is None or self._header_length is None:
            return None
        try:
            return parse_header_length(self._header_length, content_length)
        except InferError:
            return None

    def _json_size(self, body: Buffer) -> int:
        return len(body) if self._json_length is None else self._json_length

    def decode(self, body: Buffer, config: Any) -> HttpInfer:
        limit = self.front.max_input_size
        if self._json_length:
            return decode_infer(self.model, self.version, body, self._json_length, limit)
        if self._compressed:
            body = decompress(body, limit)
        length = len(body)
        if self._header_length is not None:
            length = parse_header_length(self._header_length, length)
        if length == 0:
            return decode_raw(self.model, self.version, body, config, limit)
        return decode_infer(self.model, self.version, body, length, limit)

    def submit(self, exchange: Exchange, infer: HttpInfer) -> None:
        answer = _Answer(self, exchange, infer)
        exchange.on_disconnect = answer.cancel
        answer.call = self.front.submit(exchange, infer.request, answer.take, self._traceparent)


class _Answer:
    """The sink of one inference."""

    __slots__ = ("_exchange", "_held", "_infer", "_route", "_seen", "call")

    def __init__(self, route: InferRoute, exchange: Exchange, infer: HttpInfer) -> None:
        self.call: Call | None = None
        self._route = route
        self._exchange = exchange
        self._infer = infer
        self._held: InferResponse | None = None
        self._seen = 0

    def cancel(self) -> None:
        if self.call is not None:
            self.call.cancel()

    def take(self, response: InferResponse) -> None:
        """Receive a response; the last one is answered, if it is the only one."""
        if not response.final or self._seen:
            response, final = self._count(response), response.final
            if not final:
                return
        exchange = self._exchange
        if exchange.gone:
            return
        infer = self._infer
        try:
            if infer.prints and sum([len(tensor.data) for tensor in response.outputs]) > _HEAVY:
                self._encode_in_thread(response)
            else:
                self._send(encode_infer(infer, response, self._route.front.classes_of))
        except Exception as error:
            exchange.fail(error)

    def _encode_in_thread(self, response: InferResponse) -> None:
        front = self._route.front
        model, version = response.model_name, response.model_version
        # The service is asked here, on the loop; the thread gets the answers.
        classes = {
            output.name: front.classes_of(model, version, output.name)
            for output in self._infer.request.outputs
            if output.classification
        }
        work = partial(encode_infer, self._infer, response, lambda _model, _version, name: classes[name])
        front.run_in_thread(self._exchange, work, self._send)

    def _send(self, encoded: EncodedResponse) -> None:
        if self._route.encoding:
            self._compress(encoded)
        else:
            self._exchange.respond(200, encoded.headers, encoded.parts)

    def _count(self, response: InferResponse) -> InferResponse:
        """Count responses that are not a lone final one; return what answers the request."""
        if not response.final or response.outputs or response.error is not None:
            self._seen += 1
            self._held = self._held or response
        if self._seen == 1 and self._held is not None:
            return self._held
        return InferResponse(error=internal(f"expected a single response, got {self._seen}"))

    def _compress(self, encoded: EncodedResponse) -> None:
        encoding = self._route.encoding
        headers = encoded.headers + f"Content-Encoding: {encoding}\r\n".encode()
        work = partial(compress, encoded.parts, encoding)
        if sum(map(len, encoded.parts)) <= _HEAVY:
            self._exchange.respond(200, headers, (work(),))
            return
        self._route.front.run_in_thread(
            self._exchange, work, lambda body: self._exchange.respond(200, headers, (body,))
        )


class FrontSettings(Protocol):
    """The server settings that concern the HTTP front.

    `http_max_input_size` bounds a request's JSON, a tensor given as JSON, a raw input, and a compressed
    request once decompressed; tensors in binary it does not bound.
    """

    @property
    def http_max_input_size(self) -> int: ...

    @property
    def max_connections(self) -> int: ...

    @property
    def http_max_header_size(self) -> int: ...

    @property
    def http_read_timeout_secs(self) -> float: ...

    @property
    def http_idle_timeout_secs(self) -> float: ...


class HttpFront:
    """Serves the v2 HTTP API.

    Args:
        service: what answers.
        settings: server settings; None means their defaults.
        limits: overrides the connection limits taken from the settings.
        rest_api: overrides the ASGI application for everything but inference.
        observer: takes note of requests, and has the log and trace settings.
        restrictions: categories of the API that need a header.
        forwarder: makes request parameters of headers.
    """

    def __init__(
        self,
        service: InferenceService,
        settings: FrontSettings | None = None,
        limits: HttpSettings | None = None,
        rest_api: AsgiApp | None = None,
        observer: Observer | None = None,
        restrictions: Restrictions | None = None,
        forwarder: HeaderForwarder | None = None,
    ) -> None:
        self.service = service
        self.observer = observer or Observer(LiveSettings())
        self.forwarder = forwarder
        self._restrictions = restrictions or {}
        self.max_input_size = settings.http_max_input_size if settings else DEFAULT_MAX_INPUT_SIZE
        self._rest_api: AsgiApp = rest_api or build_rest_api(service, self.max_input_size, self.observer)
        self.limits = limits or _limits(settings)
        self.tasks: set[asyncio.Task[None]] = set()
        self._server = HttpServer(self, self.limits)

    def submit(self, exchange: Exchange, request: InferRequest, sink: Sink, traceparent: str) -> Call:
        """Submit a request of an exchange, with the headers that are forwarded, and take note of it."""
        if self.forwarder is not None:
            request = self.forwarder.into(request, exchange.head.as_sent())
        if not self.observer.on:
            return self.service.submit(request, sink)
        arrival = Arrival("http", int(exchange.begun * 1e9) or monotonic_ns(), traceparent)
        return self.observer.submit(self.service, request, sink, arrival)

    @property
    def connections(self) -> int:
        """Open connections."""
        return self._server.connections

    @property
    def buffered_bytes(self) -> int:
        """Request bytes held for bodies that came in more than one piece."""
        return self._server.buffered

    async def start(
        self, address: str, port: int, reuse_port: bool = True, tls: ssl.SSLContext | None = None
    ) -> int:
        """Listen and return the port; see `HttpServer.start`."""
        return await self._server.start(address, port, reuse_port, tls)

    async def stop(self, grace_s: float) -> None:
        """Refuse new connections, finish outstanding requests, close; see `HttpServer.stop`."""
        await self._server.stop(grace_s)

    def route(self, head: RequestHead) -> Route:
        """Return the route of a request."""
        if self._restrictions and (refusal := self._refusal(head)) is not None:
            return refusal
        match = _INFER_PATH.fullmatch(head.path)
        if match is None:
            return AsgiRoute(self._rest_api, head, self.tasks)
        if head.method != "POST":
            return METHOD_NOT_ALLOWED
        model, version, verb = match[1], match[2] or "", match[3]
        if verb == "infer":
            return InferRoute(self, head, model, version)
        return GenerateRoute(self, head, model, version, verb == "generate_stream")

    def _refusal(self, head: RequestHead) -> Route | None:
        restriction = self._restrictions.get(category_of_path(head.path))
        if restriction is None:
            return None
        sent = head.get(restriction.header.lower().encode())
        if restriction.met_by(None if sent is None else sent.encode("latin-1")):
            return None
        text = f"This API is restricted, expecting header '{restriction.header}'"
        return FixedRoute(403, JSON_HEADERS, encode_error(text))

    def classes_of(self, model: str, version: str, output: str) -> Classes:
        """Return what classification needs to know of a model's output."""
        batched = self.service.model_config(model, version).max_batch_size > 0
        return Classes(self.service.labels(model, version, output), batched)

    def run_in_thread(self, exchange: Exchange, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Do long work off the event loop, then go on with its result unless the client has gone."""

        def done(future: asyncio.Future[Any]) -> None:
            if exchange.gone:
                return
            try:
                then(future.result())
            except Exception as error:
                exchange.fail(error)

        asyncio.get_running_loop().run_in_executor(None, work).add_done_callback(done)


def _limits(settings: FrontSettings | None) -> HttpSettings:
    if settings is None:
        return HttpSettings()
    return HttpSettings(
        max_connections=settings.max_connections,
        max_head_bytes=settings.http_max_header_size,
        read_timeout_s=settings.http_read_timeout_secs,
        idle_timeout_s=settings.http_idle_timeout_secs,
    )
