"""What one HTTP/2 connection sends: frames, held to the client's windows, one write a turn of the loop."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from app.core.tensors import Buffer
from app.ingress.http2.keepalive import Keepalive
from app.ingress.http2.stream import Stream
from app.protocol.grpc import framing as wire
from app.protocol.grpc import http2 as h2

_MAX_FRAME: Final = 1 << 20
_JOIN_BELOW: Final = 64 << 10
"""Bytes up to which one copy is cheaper than a list of buffers for the kernel."""


class Http2Output:
    """The sending half of a connection.

    Args:
        loop: flushes what was sent by others than the receiving half.
        age: forgives pings when something is sent.
        finished: told of a stream whose last frame is out.
        held: told, after a flush, that something may wait for the client; returns whether anything does.

    Attributes:
        queued: bytes that wait for windows.
        holding: whether `held` is to be told.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        age: Keepalive,
        finished: Callable[[Stream], None],
        held: Callable[[], bool],
    ) -> None:
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.initial_window = self._window = h2.DEFAULT_WINDOW
        self._frame_size = h2.DEFAULT_FRAME_SIZE
        self._loop = loop
        self._age = age
        self._finished = finished
        self._held = held
        self.queued = 0
        self.holding = False
        self._out: list[Buffer] = []
        self._flush_due = False
        self._ended = False
        self._waiting: dict[Stream, None] = {}  # for the connection's window, in the order they came

    # What the client allows.

    def allow_frames(self, size: int) -> None:
        """The client takes frames of so many bytes."""
        self._frame_size = min(size, _MAX_FRAME)

    def widen(self, size: int) -> None:
        """The client takes so many bytes more.

        Raises:
            Http2Error: FLOW_CONTROL_ERROR for none, or too many.
        """
        self._window += size
        if not size or self._window > h2.MAX_WINDOW:
            raise h2.Http2Error(h2.FLOW_CONTROL_ERROR, "WINDOW_UPDATE out of range")
        waiting = self._waiting
        while waiting and self._window > 0:
            stream = next(iter(waiting))
            del waiting[stream]
            self.pump(stream)

    def forget(self, stream: Stream) -> None:
        """What a stream has to send is dropped."""
        self._waiting.pop(stream, None)
        if stream.queue:
            self.queued -= sum(map(len, stream.queue))
            stream.queue = None

    # Sending.

    def put(self, data: bytes) -> None:
        """Send a frame that no window holds up."""
        self._out.append(data)
        self._wake()

    def send(self, stream: Stream, block: bytes, parts: Sequence[Buffer], trailers: bytes | None) -> None:
        """As `Stream.send`; nothing for a stream that is over."""
        if stream.over:
            return
        if block:
            self._out.append(h2.frame(h2.HEADERS, h2.END_HEADERS, stream.id, block))
        self._age.strikes = 0
        stream.trailers = trailers
        size = sum(map(len, parts))
        if stream.queue or size > min(stream.window, self._window, self._frame_size):
            if stream.queue is None:
                stream.queue = deque()
            stream.queue.extend([memoryview(part) for part in parts if len(part)])
            self.queued += size
            self.pump(stream)
            return
        if size:
            self._data_head(stream, size)
            self._out.extend(parts)
        if trailers is not None:
            self._finish(stream, trailers)
        self._wake()

    def answer(self, stream: Stream, message: Sequence[Buffer], size: int) -> None:
        """As `Stream.answer`; nothing for a stream that is over."""
        total = size + wire.PREFIX.size
        if stream.over or total > stream.window or total > self._window or total > self._frame_size:
            prefix = wire.PREFIX.pack(0, size)
            self.send(stream, wire.RESPONSE_HEADERS, (prefix, *message), wire.OK_TRAILERS)
            return
        self._age.strikes = 0
        self._window -= total
        out = self._out
        out.append(wire.answer_head(stream.id, size))
        out += message
        out.append(wire.answer_end(stream.id))
        self._let_go(stream)
        self._wake()

    def pump(self, stream: Stream) -> None:
        """Send what windows allow of what waits."""
        queue = stream.queue
        while queue and stream.window > 0 and self._window > 0:
            if len(queue[0]) >= 2 * self._frame_size and self._send_whole_frames(stream, queue):
                continue
            allowed = min(stream.window, self._window, self._frame_size)
            size, pieces = 0, []
            while queue and size < allowed:
                piece = queue.popleft()
                if len(piece) > allowed - size:
                    queue.appendleft(piece[allowed - size :])
                    piece = piece[: allowed - size]
                pieces.append(piece)
                size += len(piece)
            self.queued -= size
            self._data_head(stream, size)
            self._out.extend(pieces)
        if queue:
            self.holding = True
            if stream.window > 0:
                self._waiting[stream] = None
        else:
            stream.wake()
            if stream.trailers is not None and not stream.over:
                self._finish(stream, stream.trailers)
        self._wake()

    def _send_whole_frames(self, stream: Stream, queue: deque[memoryview]) -> int:
        """Send of the long piece that is first what makes whole frames, and leave some; returns the bytes."""
        piece, size = queue[0], self._frame_size
        end = min(len(piece) - 1, stream.window, self._window) // size * size
        head = h2.frame_head(size, h2.DATA, 0, stream.id)
        for start in range(0, end, size):
            self._out.append(head)
            self._out.append(piece[start : start + size])
        stream.window -= end
        self._window -= end
        self.queued -= end
        queue[0] = piece[end:]
        return end

    def _data_head(self, stream: Stream, size: int) -> None:
        stream.window -= size
        self._window -= size
        self._age.strikes = 0  # who receives may ask how fast: gRPC's clients do so by pings
        self._out.append(h2.frame_head(size, h2.DATA, 0, stream.id))

    def _finish(self, stream: Stream, trailers: bytes) -> None:
        self._out.append(h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, stream.id, trailers))
        self._let_go(stream)

    def _let_go(self, stream: Stream) -> None:
        stream.over = True
        if not stream.ended:  # RFC 9113, section 8.1: the client need not send the rest
            self._out.append(h2.rst_stream(stream.id, h2.NO_ERROR))
        self._finished(stream)

    # Writing.

    def cork(self) -> None:
        """What is sent from now on waits for the `flush` that is certain to come."""
        self._flush_due = True

    def _wake(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what was sent."""
        self._flush_due = False
        out, self._out = self._out, []
        if out and not self._ended and not self.transport.is_closing():
            if sum(map(len, out)) <= _JOIN_BELOW:
                self.transport.write(b"".join(out))
            else:
                self.transport.writelines(out)
        if self.holding:
            self.holding = self._held()

    def end(self) -> None:
        """Write what was sent, and nothing more; what comes after is dropped."""
        self.flush()
        self._ended = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
