"""`/generate` and `/generate_stream`: a JSON object in, one out, or a stream of server-sent events.

A stream is written by a task of its own, with one write for each response. While its client does not read,
responses are buffered up to a limit; beyond it the request is cancelled and the stream ends with an error.
"""

import asyncio
from collections import deque
from functools import partial
from typing import Final

from app.core.errors import invalid_arg, unavailable
from app.core.inference import Call
from app.core.tensors import InferRequest, InferResponse, failed
from app.ingress.http1.exchange import Exchange, describe_error
from app.ingress.net.slow_clients import RESPONSE_BYTES, TOO_SLOW
from app.ingress.net.turn import Turn
from app.ingress.rest.context import LONG_DATA, LONG_JSON, RouteContext
from app.protocol.http.generate import decode_generate, encode_generate, error_event, event
from app.protocol.http.http1 import RequestHead
from app.protocol.http.v2 import JSON_HEADERS
from app.protocol.status import http_status
from app.routing.table import NotLoaded, VersionEntry

_EVENTS: Final = b"Content-Type: text/event-stream; charset=utf-8\r\n"
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
        writer_class = _StreamWriter if self._stream else _SingleWriter
        writer = writer_class(self._context, exchange, request.id, entry.decoupled)
        exchange.on_disconnect = writer.cancel
        writer.call = self._context.send(exchange, entry, request, writer.deliver, self._traceparent)
        writer.start()


class _ResponseWriter:
    """The sink of one request."""

    def __init__(self, context: RouteContext, exchange: Exchange, request_id: str, decoupled: bool) -> None:
        self.call: Call | None = None
        self._context = context
        self._exchange = exchange
        self._id = request_id
        self._decoupled = decoupled

    def start(self) -> None:
        """Start to write; called once the request is in flight."""

    def cancel(self) -> None:
        """Cancel the request."""
        if self.call is not None:
            self.call.cancel()

    def deliver(self, response: InferResponse) -> None:
        """Receive a response."""
        raise NotImplementedError

    def _encode(self, response: InferResponse) -> bytes:
        return encode_generate(self._id, response, self._context.encode_data)

    def _is_end_of_stream(self, response: InferResponse) -> bool:
        """Return whether a response is the empty final one of a decoupled model."""
        return self._decoupled and response.is_end_of_stream


class _SingleWriter(_ResponseWriter):
    """Sends the only response; more are an error, whose status is that of the first, as in Triton."""

    _held: InferResponse | None = None

    def deliver(self, response: InferResponse) -> None:
        exchange = self._exchange
        if exchange.closed:
            return
        if not self._is_end_of_stream(response):
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
        elif _byte_size(self._held) > LONG_DATA:
            self._context.run_in_thread(exchange, partial(self._encode, self._held), self._send)
        else:
            try:
                self._send(self._encode(self._held))
            except Exception as error:
                exchange.fail(error)

    def _send(self, body: bytes) -> None:
        self._exchange.respond(200, JSON_HEADERS, (body,))

    def _refuse(self) -> None:
        """Refuse a number of responses other than one, without waiting for the rest."""
        first = self._held.failure if self._held is not None else None
        self._exchange.respond(200 if first is None else http_status(first), JSON_HEADERS, (_EXACTLY_ONE,))
        self.cancel()


class _StreamWriter(_ResponseWriter):
    """Sends each response as an event; the first one decides the status."""

    def __init__(self, context: RouteContext, exchange: Exchange, request_id: str, decoupled: bool) -> None:
        super().__init__(context, exchange, request_id, decoupled)
        self._buffered: deque[InferResponse] = deque()
        self._buffered_bytes = 0
        self._closed = False
        self._begun = self._behind = False
        self._changed = asyncio.Event()
        self._turn = Turn()

    def start(self) -> None:
        self._context.tasks.start(self._write())

    def cancel(self) -> None:
        super().cancel()
        self._closed = True
        self._buffered.clear()
        self._buffered_bytes = 0
        self._context.send_buffers.remove(self)
        self._changed.set()

    def deliver(self, response: InferResponse) -> None:
        if self._closed:
            return
        if not response.final and self._is_full():
            super().cancel()
            response = failed(unavailable(TOO_SLOW), self._id)
        self._closed = response.final
        self._buffered.append(response)
        self._buffered_bytes += _byte_size(response)
        self._changed.set()
        if len(self._buffered) > 1:  # the client reads slowly
            self._behind = self._context.send_buffers.update(self)

    def buffered_bytes(self) -> int:
        """Return the bytes of buffered responses."""
        return self._buffered_bytes + RESPONSE_BYTES * len(self._buffered)

    def evict(self) -> None:
        """End with an error in place of all buffered responses."""
        closed, self._closed = self._closed, True
        if not closed:
            super().cancel()
        self._buffered.clear()
        self._buffered.append(failed(unavailable(TOO_SLOW), self._id))
        self._buffered_bytes = 0
        self._changed.set()

    def _is_full(self) -> bool:
        limits = self._context.limits
        return len(self._buffered) >= limits.stream_responses or self._buffered_bytes >= limits.stream_bytes

    async def _write(self) -> None:
        """Write responses as they arrive, until the last one or until the client disconnects."""
        exchange = self._exchange
        while not exchange.closed:
            if not self._buffered:
                self._changed.clear()
                await self._changed.wait()
                continue
            response = self._buffered.popleft()
            self._buffered_bytes -= _byte_size(response)
            if self._behind and not self._buffered:
                self._behind = False
                self._context.send_buffers.remove(self)
            await self._write_one(response)
            await exchange.drained()
            await self._turn.wrote(len(self._buffered))

    async def _write_one(self, response: InferResponse) -> None:
        exchange = self._exchange
        failure = response.failure
        if failure is not None and not self._begun and not response.model_name:  # refused: no stream begins
            exchange.fail(failure)
            return
        status, data = await self._event(response)
        if not self._begun:
            exchange.begin(status, _EVENTS)
            self._begun = True
        if response.final:
            exchange.finish(data)
        else:
            exchange.send(data)

    async def _event(self, response: InferResponse) -> tuple[int, bytes]:
        """Return a response's status and event, which is empty for the end of a stream."""
        if self._is_end_of_stream(response):
            return 200, b""
        if response.failure is not None:
            return http_status(response.failure), error_event(response.failure)
        try:
            if _byte_size(response) > LONG_DATA:
                document = await asyncio.to_thread(self._encode, response)
            else:
                document = self._encode(response)
        except Exception as raised:
            failure = describe_error(raised, self._exchange.head.path)
            return http_status(failure), error_event(failure)
        return 200, event(document)


def _byte_size(response: InferResponse) -> int:
    return sum([len(tensor.data) for tensor in response.outputs])
