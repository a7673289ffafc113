"""`/generate` and `/generate_stream`: a JSON object in, one out, or a stream of server-sent events."""

import asyncio
from functools import partial
from typing import Final

from app.core.errors import invalid_arg
from app.core.inference import Call
from app.core.tensors import InferRequest, InferResponse
from app.ingress.http1.exchange import Exchange, describe_error
from app.ingress.rest.context import LONG_DATA, LONG_JSON, RouteContext
from app.ingress.rest.stream_writer import EVENT_STREAM, Event, StreamWriter, byte_size
from app.protocol.http.generate import decode_generate, encode_generate, error_event, event
from app.protocol.http.http1 import RequestHead
from app.protocol.http.json_tensors import EncodeData
from app.protocol.http.v2 import JSON_HEADERS
from app.protocol.status import http_status
from app.routing.table import NotLoaded, VersionEntry

_EXACTLY_ONE: Final = (
    b'{"error":"generate expects model to produce exactly 1 response, use generate stream for model that '
    b'generates various number of responses"}'
)


class GenerateRoute:
    """`POST /v2/models/<model>[/versions/<version>]/generate` and `.../generate_stream`."""

    def __init__(
        self, context: RouteContext, head: RequestHead, model: str, version: str, stream: bool
    ) -> None:
        self._context = context
        self.model = model
        self.version = version
        self._stream = stream
        self._traceparent = head.get(b"traceparent") or ""
        self._plain = (head.get(b"content-encoding") or "identity") == "identity"

    def start(self, exchange: Exchange, body: memoryview) -> None:
        """Decode and submit."""
        try:
            entry = self._context.service.resolve(self.model, self.version)
        except NotLoaded as idle:
            self._context.start_loaded(exchange, idle.entry, partial(self.start, exchange, body))
            return
        if not self._plain:
            raise invalid_arg("Unsupported content-encoding, only 'identity' is supported.")
        if len(body) > LONG_JSON:
            self._context.run_in_thread(
                exchange, partial(self._decode, body, entry), partial(self._submit, exchange, entry)
            )
        else:
            self._submit(exchange, entry, self._decode(body, entry))

    def _decode(self, body: memoryview, entry: VersionEntry) -> InferRequest:
        inputs = tuple(entry.inputs.values())
        return decode_generate(self.model, self.version, body, inputs, self._context.max_input_size)

    def _submit(self, exchange: Exchange, entry: VersionEntry, request: InferRequest) -> None:
        if self._stream:
            self._start_stream(exchange, entry, request)
            return
        writer = _SingleWriter(self._context, exchange, request.id, entry.decoupled)
        exchange.on_disconnect = writer.cancel
        writer.call = self._context.send(exchange, entry, request, writer.deliver, self._traceparent)

    def _start_stream(self, exchange: Exchange, entry: VersionEntry, request: InferRequest) -> None:
        events = _Events(exchange.head.path, request.id, entry.decoupled, self._context.encode_data)
        writer = StreamWriter(self._context, exchange, events)
        exchange.on_disconnect = writer.cancel
        deliver = partial(writer.deliver, 0)
        writer.calls.append(self._context.send(exchange, entry, request, deliver, self._traceparent))
        self._context.tasks.start(writer.write())


class _SingleWriter:
    """Sends the only response; more are an error, whose status is that of the first, as in Triton."""

    def __init__(self, context: RouteContext, exchange: Exchange, request_id: str, decoupled: bool) -> None:
        self.call: Call | None = None
        self._context = context
        self._exchange = exchange
        self._id = request_id
        self._decoupled = decoupled
        self._held: InferResponse | None = None

    def cancel(self) -> None:
        """Cancel the request."""
        if self.call is not None:
            self.call.cancel()

    def deliver(self, response: InferResponse) -> None:
        """Receive a response."""
        exchange = self._exchange
        if exchange.closed:
            return
        if not (self._decoupled and response.is_end_of_stream):
            if self._held is not None:
                self._refuse()
                return
            self._held = response
        if not response.final:
            return
        if self._held is None:
            self._refuse()
        elif self._held.failure is not None:
            exchange.fail(self._held.failure)
        elif byte_size(self._held) > LONG_DATA:
            self._context.run_in_thread(exchange, partial(self._encode, self._held), self._send)
        else:
            try:
                self._send(self._encode(self._held))
            except Exception as error:
                exchange.fail(error)

    def _encode(self, response: InferResponse) -> bytes:
        return encode_generate(self._id, response, self._context.encode_data)

    def _send(self, body: bytes) -> None:
        self._exchange.respond(200, JSON_HEADERS, (body,))

    def _refuse(self) -> None:
        """Refuse a number of responses other than one, without waiting for the rest."""
        first = self._held.failure if self._held is not None else None
        self._exchange.respond(200 if first is None else http_status(first), JSON_HEADERS, (_EXACTLY_ONE,))
        self.cancel()


class _Events:
    """Makes an event of each response; the first one decides the status."""

    headers = EVENT_STREAM

    def __init__(self, path: str, request_id: str, decoupled: bool, encode: EncodeData) -> None:
        self._path = path
        self._id = request_id
        self._encode_data = encode
        self._decoupled = decoupled

    def _encode(self, response: InferResponse) -> bytes:
        return encode_generate(self._id, response, self._encode_data)

    async def event(self, index: int, response: InferResponse) -> Event:
        if self._decoupled and response.is_end_of_stream:
            return Event(b"", True)
        failure = response.failure
        if failure is not None:
            refusal = None if response.model_name else failure
            return Event(error_event(failure), response.final, http_status(failure), refusal)
        try:
            if byte_size(response) > LONG_DATA:
                document = await asyncio.to_thread(self._encode, response)
            else:
                document = self._encode(response)
        except Exception as raised:
            failure = describe_error(raised, self._path)
            return Event(error_event(failure), response.final, http_status(failure))
        return Event(event(document), response.final)
