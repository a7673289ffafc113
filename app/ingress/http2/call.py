"""gRPC calls over an HTTP/2 stream: request messages, deadline and status, and the calls of unary methods."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic
from typing import Any, Final

from app.core.errors import ErrorCode, Failure, FailureReason, InferError
from app.core.tensors import Buffer
from app.ingress.http2.state import Http2State
from app.ingress.http2.stream import Stream, StreamReceiver
from app.protocol.grpc import framing as wire
from app.protocol.grpc.framing import Allocator, CallHead, Compressed, MessageReader
from app.protocol.grpc.message_parts import first_tensor_offset
from app.protocol.grpc.refusal import not_a_call
from app.protocol.restrictions import Restriction
from app.protocol.status import grpc_status
from app.transport.memory.shared_pool import allocate_aligned

logger = logging.getLogger(__name__)

_UNEXPECTED: Final = "the server failed to handle the request; its log has the details"


def _allocate_shared(size: int, beginning: Buffer) -> memoryview:
    """Return memory for a request message in which its first long tensor is aligned."""
    return allocate_aligned(size, first_tensor_offset(beginning))


class GrpcCall(ABC):
    """A call in flight.

    Attributes:
        deadline: `time.monotonic` seconds at which the call expires; 0 for none.
        over: the call has ended, or was answered or cancelled.
    """

    __slots__ = (
        "_buffered",
        "_head",
        "_headers_sent",
        "_reader",
        "_state",
        "_stream",
        "_timer",
        "deadline",
        "over",
    )

    def __init__(self, state: Http2State, stream: Stream, head: CallHead) -> None:
        self._state = state
        self._stream = stream
        self._head = head
        self._reader: MessageReader | None = None
        self._buffered = 0
        self._headers_sent = False
        self.over = False
        self._timer: asyncio.TimerHandle | None = None
        self.deadline = 0.0
        state.calls += 1
        if head.timeout_s is not None:
            self.start_timer()

    def start_timer(self) -> None:
        """Begin to wait for the deadline."""
        assert self._head.timeout_s is not None
        self.deadline = monotonic() + self._head.timeout_s
        self._timer = self._state.loop.call_later(self._head.timeout_s, self._expire)

    def receive(self, data: bytes, end: bool) -> None:
        """Receive DATA; `end` with the last of it."""
        self.receive_segments((data,), len(data), end)

    def receive_segments(self, segments: Sequence[Buffer], size: int, end: bool) -> None:
        """Receive DATA in segments of `size` bytes together, which are copied."""
        if not self._reserve(size):
            return
        reader = self._reader
        if reader is None:
            reader = self._reader = self._make_reader()
        try:
            messages = reader.feed_segments(segments)
        except LookupError as error:
            text = f"Compression algorithm '{error.args[0]}' is not supported by the server"
            self.end(wire.UNIMPLEMENTED, text)
        except (ValueError, MemoryError) as error:
            self.end(wire.RESOURCE_EXHAUSTED, str(error))
        else:
            self._receive_messages(messages, size, end)

    def _make_reader(self) -> MessageReader:
        return MessageReader(self._head.encoding, self._state.settings.max_message_size, self._allocator())

    @abstractmethod
    def _receive_messages(self, messages: list[Any], size: int, end: bool) -> None:
        """Receive the messages that another `size` bytes have completed."""

    @abstractmethod
    def arriving(self) -> tuple[int, int]:
        """Return which message is to arrive, and how much of it has; see `StreamReceiver`."""

    def _allocator(self) -> Allocator | None:
        """Return what allocates memory for long messages; None for ordinary memory."""
        return None

    @abstractmethod
    def cancelled(self) -> None:
        """End the call without a status: the client reset it or closed the connection."""

    @property
    def metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """The request headers of the call; bytes for names that end in `-bin`."""
        return self._head.metadata

    def fail(self, error: Failure | Exception) -> None:
        """End the call with the status of a failure; log an exception that is no `InferError`."""
        retry_after_s = 0.0
        if isinstance(error, Failure | InferError):
            retry_after_s = error.retry_after_s
            # Triton answers a cancelled request with a status without text.
            cancelled = error.code is ErrorCode.CANCELLED and error.reason is not FailureReason.BACKEND
            details = "" if cancelled else error.message
        else:
            logger.error("gRPC request failed", exc_info=error)
            details = _UNEXPECTED
        self.end(grpc_status(error), details, retry_after_s)

    def end(self, status: int, message: str, retry_after_s: float = 0.0) -> None:
        """End the call with a gRPC status code; see `wire.trailers`."""
        if self.over:
            return
        self._close()
        block = wire.trailers(status, message, retry_after_s)
        self._stream.send(b"", (), block if self._headers_sent else wire.RESPONSE_HEADERS + block)

    def end_undecompressed(self, error: ValueError | MemoryError) -> None:
        """End the call because of a message that is not compressed as it says, or becomes too large."""
        self.end(wire.INTERNAL if isinstance(error, ValueError) else wire.RESOURCE_EXHAUSTED, str(error))

    def _expire(self) -> None:
        self.end(wire.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _reserve(self, size: int) -> bool:
        """Count received bytes as buffered; over the server's limit, end the call and return False."""
        state = self._state
        self._buffered += size
        state.buffered += size
        if state.buffered <= state.settings.max_buffered_bytes:
            return True
        self.end(wire.RESOURCE_EXHAUSTED, "request buffer limit of the server exceeded")
        return False

    def _framed(self, data: bytes) -> tuple[bytes, bytes, bytes]:
        """Return response headers, message prefix and message, compressed if the client accepts that."""
        if self._state.compresses and self._head.accepts_gzip:
            data = wire.compress(data)
            return wire.GZIP_HEADERS, wire.PREFIX.pack(1, len(data)), data
        return wire.RESPONSE_HEADERS, wire.PREFIX.pack(0, len(data)), data

    def _close(self) -> None:
        """Release the buffered bytes and the timer."""
        self.over = True
        self._state.calls -= 1
        self._state.buffered -= self._buffered
        self._buffered = 0
        if self._timer is not None:
            self._timer.cancel()


def nothing() -> None:
    """Cancel nothing."""


class UnaryCall(GrpcCall):
    """A call with one request and one response message, answered by a callback rather than by a task.

    A long request message is received into memory that can be lent to a replica.

    Attributes:
        on_cancel: called once if the call ends before it is answered.
    """

    __slots__ = ("_handler", "_message", "on_cancel")

    def __init__(self, handler: "UnaryHandler", state: Http2State, stream: Stream, head: CallHead) -> None:
        super().__init__(state, stream, head)
        self._handler = handler
        self._message: Any = None
        self.on_cancel: Callable[[], object] = nothing

    def receive(self, data: bytes, end: bool) -> None:
        message = None
        if end and self._reader is None:
            message = wire.only_message(data, self._state.settings.max_message_size)
        if message is None:
            super().receive(data, end)
        elif self._reserve(len(data)):
            self._handler(self, message)

    def begin_message(self, size: int, at: int) -> None:
        """Prepare for a message of `size` bytes whose prefix was read; its tensor begins at the byte `at`."""
        memory = allocate_aligned(size, at)
        self._reader = self._make_reader()
        self._reader.begin(memory)

    def _receive_messages(self, messages: list[Any], size: int, end: bool) -> None:
        if messages:
            if self._message is not None or len(messages) > 1:
                self.end(wire.UNIMPLEMENTED, "Too many requests for a unary call")
                return
            self._message = messages[0]
        if not end:
            self._stream.grant(size)
            return
        message, self._message = self._message, None
        if message is None or (self._reader is not None and self._reader.partial):
            self.end(wire.INTERNAL, "the call ended without a whole message")
        elif isinstance(message, Compressed):
            self._state.decompress(message).add_done_callback(self._decompressed)
        else:
            self._handler(self, message)

    def _decompressed(self, message: "asyncio.Future[bytes]") -> None:
        if self.over:
            return
        try:
            data = message.result()
        except (ValueError, MemoryError) as error:
            self.end_undecompressed(error)
        else:
            if self._reserve(len(data)):
                self._handler(self, data)

    def arriving(self) -> tuple[int, int]:
        return 1, self._buffered  # until the client has sent its message and the end

    def _allocator(self) -> Allocator:
        return _allocate_shared

    def respond(self, parts: Sequence[Buffer]) -> None:
        """Send the response message, in parts, and end the call; do nothing if it has ended."""
        if self.over:
            return
        self.on_cancel = nothing  # breaks a reference cycle
        self._close()
        if self._state.compresses and self._head.accepts_gzip:
            headers, prefix, data = self._framed(b"".join(parts))
            self._stream.send(headers, (prefix, data), wire.OK_TRAILERS)
        else:
            self._stream.respond(parts)

    def fail(self, error: Failure | Exception) -> None:
        self.on_cancel = nothing
        super().fail(error)

    def end(self, status: int, message: str, retry_after_s: float = 0.0) -> None:
        super().end(status, message, retry_after_s)
        self._cancel()

    def cancelled(self) -> None:
        if not self.over:
            self._close()
        self._cancel()

    def _cancel(self) -> None:
        on_cancel, self.on_cancel = self.on_cancel, nothing
        on_cancel()


UnaryHandler = Callable[[UnaryCall, Buffer], None]
"""Starts to answer a request message; neither raises nor blocks."""


def coroutine_handler(respond: Callable[[Buffer], Awaitable[bytes]]) -> UnaryHandler:
    """Make a handler of a coroutine from request to response message; it runs in a task."""

    async def run(call: UnaryCall, message: Buffer) -> None:
        try:
            response = await respond(message)
        except Exception as error:
            call.fail(error)
        else:
            call.respond((response,))

    def start(call: UnaryCall, message: Buffer) -> None:
        task = asyncio.get_running_loop().create_task(run(call, message))
        call.on_cancel = task.cancel

    return start


OpenCall = Callable[[Http2State, Stream, CallHead], StreamReceiver | None]
"""Opens a call of one gRPC method: `UnaryCall` or `StreamingCall` with its handler. None if refused."""


def open_call(
    state: Http2State,
    methods: Mapping[str, OpenCall],
    restricted: Mapping[str, Restriction],
    stream: Stream,
    head: CallHead,
) -> StreamReceiver | None:
    """Open a call; None if it was refused.

    Args:
        methods: by path.
        restricted: metadata required by methods, by path.
    """
    try:
        method = methods.get(head.path)
        restriction = restricted.get(head.path)
        if restriction is not None and not restriction.accepts(_metadata_value(head, restriction.header)):
            text = f"This protocol is restricted, expecting header '{restriction.header}'"
            refuse(stream, wire.UNAVAILABLE, text)
        elif head.refusal:
            headers, body, trailers = not_a_call(head.refusal, state.misdirected)
            stream.send(headers, (body,), trailers)
        elif method is None:
            refuse(stream, wire.UNIMPLEMENTED, "Method not found!")
        elif state.calls >= state.settings.max_calls:
            refuse(stream, wire.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!")
        else:
            return method(state, stream, head)
    except Exception:  # it must not end the other calls of the connection
        logger.exception("a gRPC call could not be opened")
        refuse(stream, wire.INTERNAL, _UNEXPECTED)
    return None


def refuse(stream: Stream, status: int, text: str) -> None:
    """End a stream that no call was opened for."""
    stream.send(b"", (), wire.RESPONSE_HEADERS + wire.trailers(status, text))


def _metadata_value(head: CallHead, name: str) -> bytes | None:
    name = name.lower()
    for key, value in head.metadata:
        if key == name:
            return value if isinstance(value, bytes) else value.encode("latin-1")
    return None
