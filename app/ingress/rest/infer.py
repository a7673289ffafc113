"""Inference over HTTP: decode the request, submit it, and write the response from the service's sink.

It needs no task and no iteration of the event loop. Only work that would block the loop for long
(decompression, much JSON) is done in a thread.
"""

from functools import partial
from typing import Final

from app.core.config.request_hints import strange_input
from app.core.errors import InferError, internal, unsupported
from app.core.inference import Call
from app.core.tensors import Buffer, InferResponse, failed
from app.ingress.http1.exchange import Exchange
from app.ingress.rest.context import LONG_DATA, LONG_JSON, RouteContext
from app.protocol.http.content_coding import compress, decompress, response_encoding
from app.protocol.http.http1 import RequestHead
from app.protocol.http.json_tensors import DataError
from app.protocol.http.v2 import (
    EncodedResponse,
    HttpInfer,
    decode_raw,
    encode_infer,
    parse_header_length,
)
from app.routing.table import NotLoaded, VersionEntry

ENDPOINT: Final = "HTTP end point"
"""This endpoint in Triton's refusal of decoupled models."""


class InferRoute:
    """`POST /v2/models/<model>[/versions/<version>]/infer`."""

    def __init__(self, context: RouteContext, head: RequestHead, model: str, version: str) -> None:
        self.context = context
        self.model = model
        self.version = version
        self.encoding = response_encoding(head.get(b"accept-encoding"))
        self._header_length = head.get(b"inference-header-content-length")
        self._traceparent = head.get(b"traceparent") or ""
        given = head.get(b"content-encoding")
        content_encoding = "identity" if given is None else given
        self._compressed = content_encoding in ("gzip", "deflate")
        self._json_length = self._known_json_length(head.content_length)
        self._supported = self._compressed or content_encoding == "identity"

    def start(self, exchange: Exchange, body: memoryview) -> None:
        """Decode and submit."""
        try:
            entry = self.context.service.resolve_single(self.model, self.version, ENDPOINT)
        except NotLoaded as idle:
            self.context.start_loaded(exchange, idle.entry, partial(self.start, exchange, body))
            return
        json_size = len(body) if self._json_length is None else self._json_length
        if not self._supported:
            exchange.fail(unsupported("Unsupported compression type"), b"Accept-Encoding: gzip, deflate\r\n")
        elif self._compressed or json_size > LONG_JSON:
            self.context.run_in_thread(
                exchange, partial(self._decode, body, entry), partial(self._submit, exchange, entry)
            )
        else:
            self._submit(exchange, entry, self._decode(body, entry))

    def is_plain(self, head: RequestHead) -> bool:
        """Return whether the body of a request is read as it is, and its response keeps the connection.

        No request is while headers are forwarded, or one whose response is compressed.
        """
        kept_alive = head.keep_alive and head.version == "1.1"
        changed = self.encoding or self._compressed or not self._supported or self.context.forwarder
        return kept_alive and not changed

    def _known_json_length(self, content_length: int | None) -> int | None:
        """Return the length of the JSON part if the head alone determines it."""
        if self._compressed or content_length is None or self._header_length is None:
            return None
        try:
            return parse_header_length(self._header_length, content_length)
        except InferError:
            return None

    def _decode(self, body: Buffer, entry: VersionEntry) -> HttpInfer:
        try:
            return self._decoded(body, entry)
        except DataError as error:
            if entry.config and error.input not in entry.inputs:  # its name is the mistake, not its data
                raise strange_input(error.input, self.model, entry.inputs) from None
            raise

    def _decoded(self, body: Buffer, entry: VersionEntry) -> HttpInfer:
        limit = self.context.max_input_size
        if self._compressed:
            body = decompress(body, limit)
        length = self._json_length
        if length is None:
            given = self._header_length
            length = len(body) if given is None else parse_header_length(given, len(body))
        if length == 0:
            return decode_raw(self.model, self.version, body, entry.model_config, limit)
        return self.context.decode_infer(self.model, self.version, body, length, limit)

    def _submit(self, exchange: Exchange, entry: VersionEntry, infer: HttpInfer) -> None:
        writer = ResponseWriter(self, exchange, entry, infer)
        exchange.on_disconnect = writer.cancel
        writer.call = self.context.send(exchange, entry, infer.request, writer.deliver, self._traceparent)


class ResponseWriter:
    """The sink of one inference."""

    __slots__ = ("_entry", "_exchange", "_held", "_infer", "_route", "_seen", "call")

    def __init__(self, route: InferRoute, exchange: Exchange, entry: VersionEntry, infer: HttpInfer) -> None:
        self.call: Call | None = None
        self._route = route
        self._exchange = exchange
        self._entry = entry
        self._infer = infer
        self._held: InferResponse | None = None
        self._seen = 0

    def cancel(self) -> None:
        if self.call is not None:
            self.call.cancel()

    def deliver(self, response: InferResponse) -> None:
        """Receive a response; the final one is sent, if it is the only one."""
        if not response.final or self._seen:
            response, final = self._count(response), response.final
            if not final:
                return
        exchange = self._exchange
        if exchange.closed:
            return
        infer, context = self._infer, self._route.context
        if response.failure is not None:
            exchange.fail(response.failure)
            return
        work = partial(encode_infer, infer, response, self._entry, context.encode_data)
        try:
            if (
                infer.needs_json_encoding
                and sum([len(tensor.data) for tensor in response.outputs]) > LONG_DATA
            ):
                context.run_in_thread(exchange, work, self._send)
            else:
                self._send(work())
        except Exception as error:
            exchange.fail(error)

    def _send(self, encoded: EncodedResponse) -> None:
        if self._route.encoding:
            self._compress(encoded)
        else:
            self._exchange.respond(200, encoded.headers, encoded.parts)

    def _count(self, response: InferResponse) -> InferResponse:
        """Count responses that are not a single final one; return the response to send."""
        if not response.final or response.outputs or response.failure is not None:
            self._seen += 1
            self._held = self._held or response
        if self._seen == 1 and self._held is not None:
            return self._held
        return failed(internal(f"expected a single response, got {self._seen}"))

    def _compress(self, encoded: EncodedResponse) -> None:
        encoding = self._route.encoding
        headers = encoded.headers + f"Content-Encoding: {encoding}\r\n".encode()
        work = partial(compress, encoded.parts, encoding)
        if sum(map(len, encoded.parts)) <= LONG_DATA:
            self._exchange.respond(200, headers, (work(),))
            return
        self._route.context.run_in_thread(
            self._exchange, work, lambda body: self._exchange.respond(200, headers, (body,))
        )
