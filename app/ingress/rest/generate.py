"""`/generate` and `/generate_stream`: a JSON object in, one out, or a stream of server-sent events.

A stream is written by a task of its own, one write a response. While its client does not read, responses
wait, up to a bound; beyond it the request is cancelled and the stream ends with an error.
"""

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import input_specs
from app.core.errors import invalid_arg, unavailable
from app.core.inference import Call
from app.core.tensors import InferRequest, InferResponse, failed
from app.ingress.http1.exchange import Exchange, describe_error
from app.ingress.net.slow_clients import RESPONSE_BYTES, TOO_SLOW
from app.protocol.http.generate import decode_generate, encode_generate, error_event, event
from app.protocol.http.http1 import RequestHead
from app.protocol.http.v2 import JSON_HEADERS
from app.protocol.status import http_status

if TYPE_CHECKING:
    from app.ingress.rest.front import HttpFront

_EVENTS: Final = b"Content-Type: text/event-stream; charset=utf-8\r\n"
_EXACTLY_ONE: Final = (
    b'{"error":"generate expects model to produce exactly 1 response, use generate stream for model that '
    b'generates various number of responses"}'
)
_HEAVY_REQUEST: Final = 32 << 10
"""Bytes of a request from which a thread decodes it."""
_HEAVY_RESPONSE: Final = 256 << 10
"""Bytes of tensors from which a thread prints them."""


class GenerateRoute:
    """`POST /v2/models/<model>[/versions/<version>]/generate` and `.../generate_stream`."""

    def __init__(self, front: "HttpFront", head: RequestHead, model: str, version: str, stream: bool) -> None:
        self.front = front
        self.model = model
        self.version = version
        self._stream = stream
        self._traceparent = head.get(b"traceparent") or ""
        self._plain = (head.get(b"content-encoding") or "identity") == "identity"

    def start(self, exchange: Exchange, body: memoryview) -> None:
        """Decode and submit."""
        config = self.front.service.model_config(self.model, self.version)
        if not self._plain:
            raise invalid_arg("Unsupported content-encoding, only 'identity' is supported.")
        decoupled = config.model_transaction_policy.decoupled
        if len(body) > _HEAVY_REQUEST:
            self.front.run_in_thread(
                exchange, partial(self._decode, body, config), partial(self._submit, exchange, decoupled)
            )
        else:
            self._submit(exchange, decoupled, self._decode(body, config))

    def _decode(self, body: memoryview, config: mc.ModelConfig) -> InferRequest:
        inputs = input_specs(config)
        return decode_generate(self.model, self.version, body, inputs, self.front.max_input_size)

    def _submit(self, exchange: Exchange, decoupled: bool, request: InferRequest) -> None:
        kind = _Stream if self._stream else _Single
        answer = kind(self.front, exchange, request.id, decoupled)
        exchange.on_disconnect = answer.cancel
        answer.call = self.front.submit(exchange, request, answer.take, self._traceparent)
        answer.begin()


class _Answer:
    """The sink of one request."""

    def __init__(self, front: "HttpFront", exchange: Exchange, request_id: str, decoupled: bool) -> None:
        self.call: Call | None = None
        self._front = front
        self._exchange = exchange
        self._id = request_id
        self._decoupled = decoupled

    def begin(self) -> None:
        """Called when the request is under way."""

    def cancel(self) -> None:
        """Tell the model that nobody waits for its answer."""
        if self.call is not None:
            self.call.cancel()

    def take(self, response: InferResponse) -> None:
        """Receive a response."""
        raise NotImplementedError

    def _says_nothing(self, response: InferResponse) -> bool:
        """Whether a decoupled model only tells that nothing more comes."""
        return self._decoupled and response.ends_only


class _Single(_Answer):
    """Answers with the only response, whole. As in Triton, the first one decides the status of any answer."""

    _held: InferResponse | None = None

    def take(self, response: InferResponse) -> None:
        exchange = self._exchange
        if exchange.gone:
            return
        if not self._says_nothing(response):
            if self._held is not None:
                self._refuse()
                return
            self._held = response
        if not response.final:
            return
        if self._held is None:
            self._refuse()
        elif _byte_size(self._held) > _HEAVY_RESPONSE:
            self._front.run_in_thread(exchange, partial(encode_generate, self._id, self._held), self._send)
        else:
            try:
                self._send(encode_generate(self._id, self._held))
            except Exception as error:
                exchange.fail(error)

    def _send(self, body: bytes) -> None:
        self._exchange.respond(200, JSON_HEADERS, (body,))

    def _refuse(self) -> None:
        """Answer what would need a stream, without waiting for the rest of it."""
        first = self._held.failure if self._held is not None else None
        self._exchange.respond(200 if first is None else http_status(first), JSON_HEADERS, (_EXACTLY_ONE,))
        self.cancel()


class _Stream(_Answer):
    """Sends each response as an event; the first one decides the status."""

    def __init__(self, front: "HttpFront", exchange: Exchange, request_id: str, decoupled: bool) -> None:
        super().__init__(front, exchange, request_id, decoupled)
        self._waiting: deque[InferResponse] = deque()
        self._waiting_bytes = 0
        self._closed = False
        self._begun = self._behind = False
        self._news = asyncio.Event()

    def begin(self) -> None:
        task = asyncio.get_running_loop().create_task(self._write())
        self._front.tasks.add(task)
        task.add_done_callback(self._front.tasks.discard)

    def cancel(self) -> None:
        super().cancel()
        self._closed = True
        self._waiting.clear()
        self._waiting_bytes = 0
        self._front.unsent.forget(self)
        self._news.set()

    def take(self, response: InferResponse) -> None:
        if self._closed:
            return
        if not response.final and self._is_full():
            super().cancel()
            response = failed(unavailable(TOO_SLOW), self._id)
        self._closed = response.final
        self._waiting.append(response)
        self._waiting_bytes += _byte_size(response)
        self._news.set()
        if len(self._waiting) > 1:  # the writer is behind
            self._behind = self._front.unsent.note(self)

    def unsent(self) -> int:
        """Bytes of responses that were not written."""
        return self._waiting_bytes + RESPONSE_BYTES * len(self._waiting)

    def give_up(self) -> None:
        """End with an error in place of all that waits."""
        closed, self._closed = self._closed, True
        if not closed:
            super().cancel()
        self._waiting.clear()
        self._waiting.append(failed(unavailable(TOO_SLOW), self._id))
        self._waiting_bytes = 0
        self._news.set()

    def _is_full(self) -> bool:
        limits = self._front.limits
        return len(self._waiting) >= limits.stream_responses or self._waiting_bytes >= limits.stream_bytes

    async def _write(self) -> None:
        """Write responses as they come, until the last one or until the client goes."""
        exchange = self._exchange
        while not exchange.gone:
            if not self._waiting:
                self._news.clear()
                await self._news.wait()
                continue
            response = self._waiting.popleft()
            self._waiting_bytes -= _byte_size(response)
            if self._behind and not self._waiting:
                self._behind = False
                self._front.unsent.forget(self)
            await self._write_one(response)
            await exchange.drained()

    async def _write_one(self, response: InferResponse) -> None:
        exchange = self._exchange
        failure = response.failure
        if failure is not None and not self._begun and not response.model_name:  # refused: no stream begins
            exchange.fail(failure.error())
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
        """Return the status a response stands for and its event, empty for one that says nothing."""
        if self._says_nothing(response):
            return 200, b""
        try:
            if _byte_size(response) > _HEAVY_RESPONSE:
                document = await asyncio.to_thread(encode_generate, self._id, response)
            else:
                document = encode_generate(self._id, response)
        except Exception as raised:
            error = describe_error(raised, self._exchange.head.path)
            return http_status(error), error_event(error)
        return 200, event(document)


def _byte_size(response: InferResponse) -> int:
    return sum([len(tensor.data) for tensor in response.outputs])
