"""One gRPC call over an HTTP/2 stream: messages in, the handler's task, messages and a status out."""

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NoReturn

from app.ingress.http2_stream import Stream
from app.protocol import grpc_http2 as wire
from app.protocol.grpc_http2 import CallHead, MessageReader
from app.protocol.restrictions import Restriction

if TYPE_CHECKING:
    from app.ingress.http2_server import Http2Server

logger = logging.getLogger(__name__)

_UNEXPECTED: Final = "the server failed to handle the request; its log has the details"


_MESSAGES_AHEAD: Final = 16
"""Messages of a client stream that may wait for their handler before the client has to wait."""


class Aborted(Exception):
    """A handler ended its call with a status."""


def refuse(stream: Stream, head: CallHead, unknown: bool) -> None:
    """Answer a request that no handler gets to see."""
    if head.refusal:
        stream.send(b"", (), wire.refusal_headers(head.refusal))
    elif unknown:
        stream.send(b"", (), wire.RESPONSE_HEADERS + wire.trailers(wire.UNIMPLEMENTED, "Method not found!"))
    else:
        text = "Concurrent RPC limit exceeded!"
        stream.send(b"", (), wire.RESPONSE_HEADERS + wire.trailers(wire.RESOURCE_EXHAUSTED, text))


def refuse_restricted(stream: Stream, restriction: Restriction) -> None:
    """Answer a call that comes without the metadata its category asks for; the text is Triton's."""
    text = f"This protocol is restricted, expecting header '{restriction.header}'"
    stream.send(b"", (), wire.RESPONSE_HEADERS + wire.trailers(wire.UNAVAILABLE, text))


class GrpcCall:
    """A call; also the context its handler gets: the part of `grpc.aio.ServicerContext` ours use."""

    def __init__(self, server: "Http2Server", stream: Stream, head: CallHead, handler: Any) -> None:
        self._server = server
        self._stream = stream
        self._head = head
        self._handler = handler
        self._reader = MessageReader(head.encoding, server.settings.max_message_size)
        self._buffered = 0
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._requests: _Requests | None = None
        self._message: bytes | None = None
        self._begun = False  # the response headers are out
        self._over = False
        self._status: tuple[int, str] | None = None
        self._deadline = 0.0
        server.calls.add(self)
        if head.timeout_s is not None:
            self._deadline = server.now() + head.timeout_s
            self._timer = server.loop.call_at(self._deadline, self._expire)
        if handler.request_streaming:
            self._requests = _Requests(self, handler.request_deserializer)
            self._start(self._run_stream(handler.stream_stream, self._requests))

    # From the connection.

    def receive(self, data: bytes, end: bool) -> None:
        """Take DATA of the client; `end` with the last of it."""
        size = len(data)
        self._buffered += size
        self._server.buffered += size
        if self._server.buffered > self._server.settings.max_buffered_bytes:
            self._end(wire.RESOURCE_EXHAUSTED, "the server is receiving more request data than it may hold")
            return
        try:
            messages = self._reader.feed(data)
        except LookupError as error:
            text = f"Compression algorithm '{error.args[0]}' is not supported by the server"
            self._end(wire.UNIMPLEMENTED, text)
            return
        except ValueError as error:
            self._end(wire.RESOURCE_EXHAUSTED, str(error))
            return
        if self._requests is not None:
            self._requests.put(messages, size, end)
        else:
            self._receive_unary(messages, size, end)

    def _receive_unary(self, messages: list[bytes], size: int, end: bool) -> None:
        if messages:
            if self._message is not None or len(messages) > 1:
                self._end(wire.UNIMPLEMENTED, "Too many requests for a unary call")
                return
            self._message = messages[0]
        if not end:
            self._stream.give_back(size)
        elif self._message is None or self._reader.partial:
            self._end(wire.INTERNAL, "the call ended without a whole message")
        else:
            if self._handler.response_streaming:
                decode = self._handler.request_deserializer
                request = decode(self._message) if decode else self._message
                self._start(self._run_stream(self._handler.unary_stream, request))
            else:
                self._start(self._run_unary(self._message))

    def give_back(self, size: int) -> None:
        """Let the client send as many bytes more."""
        self._stream.give_back(size)

    def consumed(self, size: int) -> None:
        """Count bytes no more that the handler of a stream has taken."""
        size = min(size, self._buffered)
        self._buffered -= size
        self._server.buffered -= size

    def cancelled(self) -> None:
        """The client reset the call or is gone."""
        self._close()
        if self._task is not None:
            self._task.cancel()

    # The context of the handler.

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """The call's metadata."""
        return self._head.metadata

    def time_remaining(self) -> float | None:
        """Seconds to the deadline; None without one."""
        return max(0.0, self._deadline - self._server.now()) if self._deadline else None

    async def abort(self, code: Any, details: str = "") -> NoReturn:
        """End the call with a `grpc.StatusCode`."""
        self._status = (code.value[0], details)
        raise Aborted(details)

    async def write(self, message: Any) -> None:
        """Send a message of a stream; waits while the client does not take what was sent."""
        self._send(message)
        if self._stream.queue:
            await self._stream.drained()

    # The handler's task.

    def _start(self, work: Any) -> None:
        self._task = self._server.loop.create_task(work)

    async def _run_unary(self, message: bytes) -> None:
        handler = self._handler
        try:
            request = handler.request_deserializer(message) if handler.request_deserializer else message
            response = await handler.unary_unary(request, self)
            data = handler.response_serializer(response) if handler.response_serializer else response
        except Exception as error:
            self._fail(error)
        else:
            if not self._over:
                self._close()
                headers, prefix, data = self._packed(data)
                self._stream.send(headers, (prefix, data), wire.OK_TRAILERS)

    async def _run_stream(self, method: Any, requests: Any) -> None:
        try:
            running = method(requests, self)
            if hasattr(running, "__aiter__"):
                async for message in running:
                    await self.write(message)
            else:
                await running
        except Exception as error:
            self._fail(error)
        else:
            self._end(wire.OK, "")

    def _fail(self, error: Exception) -> None:
        if isinstance(error, Aborted) and self._status is not None:
            self._end(*self._status)
        else:
            logger.error("gRPC request failed", exc_info=error)
            self._end(wire.UNKNOWN, _UNEXPECTED)

    # Sending.

    def _send(self, message: Any) -> None:
        serializer = self._handler.response_serializer
        headers, prefix, data = self._packed(serializer(message) if serializer else message)
        if not self._over:
            self._stream.send(b"" if self._begun else headers, (prefix, data))
            self._begun = True

    def _packed(self, data: bytes) -> tuple[bytes, bytes, bytes]:
        """Response headers, message prefix, message."""
        if self._server.settings.compress and self._head.accepts_gzip:
            data = wire.compress(data)
            return wire.GZIP_HEADERS, wire.PREFIX.pack(1, len(data)), data
        return wire.RESPONSE_HEADERS, wire.PREFIX.pack(0, len(data)), data

    def _end(self, status: int, message: str) -> None:
        if self._over:
            return
        self._close()
        block = wire.trailers(status, message)
        self._stream.send(b"", (), block if self._begun else wire.RESPONSE_HEADERS + block)
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    def _expire(self) -> None:
        self._end(wire.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _close(self) -> None:
        """Let go of what the call holds."""
        self._over = True
        self._server.calls.discard(self)
        self._server.buffered -= self._buffered
        self._buffered = 0
        if self._timer is not None:
            self._timer.cancel()
        if self._requests is not None:
            self._requests.put([], 0, True)


class _Requests:
    """The messages of a client stream, as its handler iterates over them.

    While several wait to be taken, the client gets no credit to send more.
    """

    def __init__(self, call: GrpcCall, deserializer: Any) -> None:
        self._call = call
        self._deserializer = deserializer
        self._messages: deque[bytes] = deque()
        self._withheld = 0
        self._ended = False
        self._news = asyncio.Event()

    def put(self, messages: list[bytes], size: int, end: bool) -> None:
        self._messages.extend(messages)
        self._ended = self._ended or end
        if len(self._messages) <= _MESSAGES_AHEAD:
            self._call.give_back(size)
        else:
            self._withheld += size
        self._news.set()

    def __aiter__(self) -> "_Requests":
        return self

    async def __anext__(self) -> Any:
        while not self._messages:
            if self._ended:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        message = self._messages.popleft()
        self._call.consumed(len(message) + wire.PREFIX.size)
        if self._withheld and len(self._messages) <= _MESSAGES_AHEAD:
            self._call.give_back(self._withheld)
            self._withheld = 0
        return self._deserializer(message) if self._deserializer else message
