"""gRPC calls whose handlers are coroutines of the kind that grpc.aio takes: a task each."""

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NoReturn

from app.ingress.http2.call import GrpcCall, OneRequestCall
from app.ingress.http2.stream import Stream
from app.protocol.grpc import framing as wire
from app.protocol.grpc.framing import CallHead, Compressed

if TYPE_CHECKING:
    from app.ingress.http2.server import Http2Server

logger = logging.getLogger(__name__)

_UNEXPECTED: Final = "the server failed to handle the request; its log has the details"
_MESSAGES_AHEAD: Final = 16
"""Messages of a client stream that may wait for their handler before the client has to wait."""


class Aborted(Exception):
    """A handler ended its call with a status."""


class TaskCall(OneRequestCall):
    """A call; also the context its handler gets: the part of `grpc.aio.ServicerContext` ours use."""

    __slots__ = ("_handler", "_requests", "_status", "_task")

    def __init__(self, server: "Http2Server", stream: Stream, head: CallHead, handler: Any) -> None:
        super().__init__(server, stream, head)
        self._handler = handler
        self._task: asyncio.Task[None] | None = None
        self._status: tuple[int, str] | None = None
        self._requests: _Requests | None = None
        if handler.request_streaming:
            self._requests = _Requests(self, handler.request_deserializer)
            self._start(self._run_stream(handler.stream_stream, self._requests))

    # From the connection.

    def receive(self, data: bytes, end: bool) -> None:
        if self._requests is None:
            super().receive(data, end)
        else:
            GrpcCall.receive(self, data, end)

    def _take(self, messages: list[bytes | Compressed], size: int, end: bool) -> None:
        if self._requests is None:
            super()._take(messages, size, end)
        else:
            self._requests.put(messages, size, end)

    def _answer_to(self, message: bytes) -> None:
        handler = self._handler
        if handler.response_streaming:
            decode = handler.request_deserializer
            self._start(self._run_stream(handler.unary_stream, decode(message) if decode else message))
        else:
            self._start(self._run_unary(message))

    def give_back(self, size: int) -> None:
        """Let the client send as many bytes more."""
        self._stream.give_back(size)

    def consumed(self, size: int) -> None:
        """Count bytes no more that the handler of a stream has taken."""
        size = min(size, self._buffered)
        self._buffered -= size
        self._server.buffered -= size

    async def decompressed(self, message: Compressed) -> bytes:
        """A message of a stream, decompressed; the call ends with one that cannot be."""
        try:
            return await self._server.decompress(message)
        except ValueError as error:
            self.end(wire.RESOURCE_EXHAUSTED, str(error))
            raise StopAsyncIteration from None

    def cancelled(self) -> None:
        """The client reset the call or is gone."""
        self._close()
        if self._task is not None:
            self._task.cancel()

    # The context of the handler.

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
            self.end(wire.OK, "")

    def _fail(self, error: Exception) -> None:
        if isinstance(error, Aborted) and self._status is not None:
            self.end(*self._status)
        else:
            logger.error("gRPC request failed", exc_info=error)
            self.end(wire.UNKNOWN, _UNEXPECTED)

    # Sending.

    def _send(self, message: Any) -> None:
        serializer = self._handler.response_serializer
        headers, prefix, data = self._packed(serializer(message) if serializer else message)
        if not self._over:
            self._stream.send(b"" if self._begun else headers, (prefix, data))
            self._begun = True

    def end(self, status: int, message: str) -> None:
        super().end(status, message)
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    def _close(self) -> None:
        super()._close()
        if self._requests is not None:
            self._requests.put([], 0, True)


class _Requests:
    """The messages of a client stream, as its handler iterates over them.

    While several wait to be taken, the client gets no credit to send more.
    """

    def __init__(self, call: TaskCall, deserializer: Any) -> None:
        self._call = call
        self._deserializer = deserializer
        self._messages: deque[bytes | Compressed] = deque()
        self._withheld = 0
        self._ended = False
        self._news = asyncio.Event()

    def put(self, messages: list[bytes | Compressed], size: int, end: bool) -> None:
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
        packed = message.data if isinstance(message, Compressed) else message
        self._call.consumed(len(packed) + wire.PREFIX.size)
        if self._withheld and len(self._messages) <= _MESSAGES_AHEAD:
            self._call.give_back(self._withheld)
            self._withheld = 0
        if isinstance(message, Compressed):
            message = await self._call.decompressed(message)
        return self._deserializer(message) if self._deserializer else message
