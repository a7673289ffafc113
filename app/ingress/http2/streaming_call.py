"""gRPC calls that receive a stream of requests and send a stream of responses, a task each."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from app.core.tensors import Buffer
from app.ingress.http2.call import GrpcCall
from app.ingress.http2.state import Http2State
from app.ingress.http2.stream import Stream
from app.protocol.grpc import framing as wire
from app.protocol.grpc.framing import CallHead, Compressed

_MAX_QUEUED: Final = 16
"""Request messages queued for a handler before the client gets no more flow-control credit."""


class StreamingCall(GrpcCall):
    """A call whose handler is a coroutine that iterates over requests and writes responses."""

    __slots__ = ("_requests", "_task")

    def __init__(
        self, handler: "StreamingHandler", state: Http2State, stream: Stream, head: CallHead
    ) -> None:
        super().__init__(state, stream, head)
        self._requests = _RequestQueue(self)
        self._task = state.loop.create_task(self._run(handler))

    async def _run(self, handler: "StreamingHandler") -> None:
        try:
            await handler(self._requests, self)
        except Exception as error:
            self.fail(error)
        else:
            self.end(wire.OK, "")

    async def write(self, message: bytes) -> None:
        """Send a response message; wait until flow control has let all of it through."""
        if self.over:
            return
        headers, prefix, data = self._framed(message)
        self._stream.send(b"" if self._headers_sent else headers, (prefix, data))
        self._headers_sent = True
        if self._stream.queue:
            await self._stream.drained()

    def end(self, status: int, message: str, retry_after_s: float = 0.0) -> None:
        super().end(status, message, retry_after_s)
        if self._task is not asyncio.current_task():
            self._task.cancel()

    def cancelled(self) -> None:
        if not self.over:
            self._close()
        self._task.cancel()

    def _receive_messages(self, messages: list[Buffer | Compressed], size: int, end: bool) -> None:
        self._requests.put(messages, size, end)

    def arriving(self) -> tuple[int, int]:
        reader = self._reader
        if reader is None or not reader.partial or self._requests.withholds:
            return 0, 0
        return reader.completed + 1, reader.received

    def _close(self) -> None:
        super()._close()
        self._requests.put([], 0, True)

    def grant(self, size: int) -> None:
        """Let the client send `size` bytes more."""
        self._stream.grant(size)

    def consumed(self, size: int) -> None:
        """Subtract a message that the handler has received from the buffered bytes."""
        size = min(size, self._buffered)
        self._buffered -= size
        self._state.buffered -= size

    async def decompressed(self, message: Compressed) -> bytes:
        """Decompress a request message; end the call if that fails."""
        try:
            return await self._state.decompress(message)
        except (ValueError, MemoryError) as error:
            self.end_undecompressed(error)
            raise StopAsyncIteration from None


StreamingHandler = Callable[[AsyncIterator[Buffer], StreamingCall], Awaitable[None]]
"""Answers a stream of request messages through `StreamingCall.write`."""


class _RequestQueue:
    """The request messages of a call, as its handler iterates over them."""

    def __init__(self, call: StreamingCall) -> None:
        self._call = call
        self._messages: deque[Buffer | Compressed] = deque()
        self._withheld = 0
        self._ended = False
        self._changed = asyncio.Event()

    @property
    def withholds(self) -> bool:
        """Whether the client may not send more, because its messages wait for the handler."""
        return bool(self._withheld)

    def put(self, messages: list[Buffer | Compressed], size: int, end: bool) -> None:
        self._messages.extend(messages)
        self._ended = self._ended or end
        if len(self._messages) <= _MAX_QUEUED:
            self._call.grant(size)
        else:
            self._withheld += size
        self._changed.set()

    def __aiter__(self) -> "_RequestQueue":
        return self

    async def __anext__(self) -> Buffer:
        while not self._messages:
            if self._ended:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        message = self._messages.popleft()
        packed = message.data if isinstance(message, Compressed) else message
        self._call.consumed(len(packed) + wire.PREFIX.size)
        if self._withheld and len(self._messages) <= _MAX_QUEUED:
            self._call.grant(self._withheld)
            self._withheld = 0
        if isinstance(message, Compressed):
            return await self._call.decompressed(message)
        return message
