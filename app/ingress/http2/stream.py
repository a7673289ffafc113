"""The sending side of an HTTP/2 connection: its streams, flow control, and one write per loop iteration."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from app.core.tensors import Buffer
from app.ingress.http2.windows import MAX_FRAME, STREAM_WINDOW
from app.ingress.net.peer import peer_name
from app.ingress.net.writing import write_parts
from app.protocol.grpc import framing as wire
from app.protocol.grpc import http2 as h2

_JOIN_BELOW: Final = 64 << 10
"""Bytes up to which one copy is cheaper than a list of buffers for the kernel."""


class StreamReceiver(Protocol):
    """Receives the data of a stream."""

    def receive(self, data: bytes, end: bool) -> None: ...

    def receive_segments(self, segments: Sequence[Buffer], size: int, end: bool) -> None: ...

    def cancelled(self) -> None:
        """Handle that the client reset the stream or closed the connection."""

    def arriving(self) -> tuple[int, int]:
        """Return the message that the client is to send more of, counted from 1, and its received bytes.

        0 while the client need not send anything, or may not.
        """

    def end(self, status: int, message: str) -> None:
        """End the call with a gRPC status code."""


class Stream:
    """The transport side of one call.

    Attributes:
        receiver: receives the stream's data; None after trailers are sent.
        window: bytes that may still be sent.
        received: bytes received for which the client has no new credit.
        ended: the client has sent everything.
        over: nothing more may be sent: it was all sent, or the stream was reset.
        queue: response data that waits for flow control, followed by `trailers`.
    """

    __slots__ = (
        "_credit",
        "_drained",
        "_output",
        "ended",
        "id",
        "over",
        "queue",
        "received",
        "receiver",
        "trailers",
        "window",
    )

    def __init__(self, output: "Output", stream_id: int) -> None:
        self._output = output
        self.id = stream_id
        self.receiver: StreamReceiver | None = None
        self.window = output.initial_window
        self.received = 0
        self._credit = 0
        self.ended = self.over = False
        self.queue: deque[memoryview] | None = None
        self.trailers: bytes | None = None
        self._drained: asyncio.Future[None] | None = None

    def peer(self) -> str:
        """Return the client's address."""
        return peer_name(self._output.transport)

    def send(self, headers: bytes, parts: Sequence[Buffer] = (), trailers: bytes | None = None) -> None:
        """Send a header block if there is one, a message, and the trailers that end the stream."""
        output = self._output
        if trailers is not None:
            self.receiver = None  # the call is over: data that the client still sends is dropped
        if self.over:
            return
        if headers:
            output.frames.append(h2.frame(h2.HEADERS, h2.END_HEADERS, self.id, headers))
        output.keepalive.sent += 1
        self.trailers = trailers
        size = sum(map(len, parts))
        if self.queue or size > min(self.window, output.window, output.frame_size):
            if self.queue is None:
                self.queue = deque()
            self.queue.extend([memoryview(part) for part in parts if len(part)])
            output.queued += size
            self.send_queued()
            return
        if size:
            self._send_data(size, parts)
        if trailers is not None:
            self._send_trailers(trailers)
        output.schedule_flush()

    def respond(self, message: Sequence[Buffer]) -> None:
        """Send the whole response of a successful call: one message, in parts."""
        output = self._output
        size = sum(map(len, message))
        total = size + wire.PREFIX.size
        if self.over or total > self.window or total > output.window or total > output.frame_size:
            prefix = wire.PREFIX.pack(0, size)
            self.send(wire.RESPONSE_HEADERS, (prefix, *message), wire.OK_TRAILERS)
            return
        output.keepalive.sent += 1
        output.window -= total
        head, tail = wire.response_frames(self.id, size)
        output.frames.append(head)
        output.frames += message
        output.frames.append(tail)
        self._finish()
        output.schedule_flush()

    async def drained(self) -> None:
        """Wait until the queue is empty."""
        while self.queue:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    def send_queued(self) -> None:
        """Send as much of the queue as the windows allow."""
        output, queue = self._output, self.queue
        while queue and self.window > 0 and output.window > 0:
            if len(queue[0]) >= 2 * output.frame_size and self._send_whole_frames(queue):
                continue
            parts, size = _pop(queue, min(self.window, output.window, output.frame_size))
            output.dequeue(size)
            self._send_data(size, parts)
        if queue:
            output.reports_buffered = True
            if self.window > 0:
                output.waiting[self] = None
        else:
            self._wake()
            if self.trailers is not None and not self.over:
                self._send_trailers(self.trailers)
        output.schedule_flush()

    def _send_whole_frames(self, queue: deque[memoryview]) -> int:
        """Send full frames of the long piece at the head of the queue, all but its rest; return the bytes."""
        output, piece = self._output, queue[0]
        size = output.frame_size
        end = min(len(piece) - 1, self.window, output.window) // size * size
        head = h2.frame_head(size, h2.DATA, 0, self.id)
        for start in range(0, end, size):
            output.frames.append(head)
            output.frames.append(piece[start : start + size])
        self.window -= end
        output.window -= end
        output.keepalive.sent += end // size
        output.dequeue(end)
        queue[0] = piece[end:]
        return end

    def _send_data(self, size: int, parts: Sequence[Buffer]) -> None:
        output = self._output
        self.window -= size
        output.window -= size
        output.keepalive.sent += 1
        output.frames.append(h2.frame_head(size, h2.DATA, 0, self.id))
        output.frames.extend(parts)

    def _send_trailers(self, trailers: bytes) -> None:
        flags = h2.END_HEADERS | h2.END_STREAM
        self._output.frames.append(h2.frame(h2.HEADERS, flags, self.id, trailers))
        self._finish()

    def _finish(self) -> None:
        output = self._output
        self.over = True
        self.receiver = None  # breaks the reference cycle of stream and call
        if not self.ended:  # RFC 9113, section 8.1: the client need not send the rest
            output.frames.append(h2.rst_stream(self.id, h2.NO_ERROR))
        del output.streams[self.id]
        if output.on_idle is not None and not output.streams:
            output.on_idle()

    def cancel(self) -> None:
        """Drop the queue, send nothing more, and notify the call."""
        self.over = True
        self._output.waiting.pop(self, None)
        if self.queue:
            self._output.queued -= sum(map(len, self.queue))
            self.queue = None
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.cancelled()
        self._wake()

    def _wake(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def grant(self, size: int) -> None:
        """Give the client credit for `size` more bytes; small amounts are sent together."""
        self._credit += size
        if self._credit >= STREAM_WINDOW // 4 and not self.ended and not self.over:
            self.received -= self._credit
            self._output.put(h2.window_update(self.id, self._credit))
            self._output.keepalive.sent += 1
            self._credit = 0


def _pop(queue: deque[memoryview], limit: int) -> tuple[list[memoryview], int]:
    """Remove up to `limit` bytes from a queue; return them, in parts, and their size."""
    parts: list[memoryview] = []
    size = 0
    while queue and size < limit:
        part = queue.popleft()
        if len(part) > limit - size:
            queue.appendleft(part[limit - size :])
            part = part[: limit - size]
        parts.append(part)
        size += len(part)
    return parts, size


class Output:
    """The frames that a connection sends, its windows and its open streams.

    Args:
        loop: flushes frames that are sent outside of `corked` sections.
        keepalive: counts what is sent of calls.
        report_buffered: called after a flush while `reports_buffered`; returns whether bytes are buffered.

    Attributes:
        streams: open streams by id.
        frames: what the next flush writes.
        window: bytes the client accepts on all streams together.
        waiting: streams that wait for `window`, in order.
        queued: bytes that wait for windows.
        drained: bytes that have waited for windows and were sent.
        written: bytes given to the transport.
        corked: whether a flush is certain to follow.
        on_idle: called when the last stream has finished.
    """

    __slots__ = (
        "_ended",
        "_loop",
        "_report_buffered",
        "corked",
        "drained",
        "frame_size",
        "frames",
        "initial_window",
        "keepalive",
        "on_idle",
        "queued",
        "reports_buffered",
        "streams",
        "transport",
        "waiting",
        "window",
        "written",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, keepalive: h2.Keepalive, report_buffered: Callable[[], bool]
    ) -> None:
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.streams: dict[int, Stream] = {}
        self.frames: list[Buffer] = []
        self.initial_window = self.window = h2.DEFAULT_WINDOW
        self.frame_size = h2.DEFAULT_FRAME_SIZE
        self.waiting: dict[Stream, None] = {}
        self.queued = self.drained = self.written = 0
        self.keepalive = keepalive
        self.corked = False
        self.reports_buffered = False
        self.on_idle: Callable[[], None] | None = None
        self._loop = loop
        self._report_buffered = report_buffered
        self._ended = False

    def allow_frames(self, size: int) -> None:
        """Set the largest frame the client accepts."""
        self.frame_size = min(size, MAX_FRAME)

    def widen(self, size: int) -> None:
        """Let the client receive `size` more bytes.

        Raises:
            Http2Error: FLOW_CONTROL_ERROR for none, or too many.
        """
        self.window += size
        if not size or self.window > h2.MAX_WINDOW:
            raise h2.Http2Error(h2.FLOW_CONTROL_ERROR, "WINDOW_UPDATE out of range")
        waiting = self.waiting
        while waiting and self.window > 0:
            stream = next(iter(waiting))
            del waiting[stream]
            stream.send_queued()

    def dequeue(self, size: int) -> None:
        """Count bytes that no longer wait for windows."""
        self.queued -= size
        self.drained += size

    def put(self, frame: bytes) -> None:
        """Send a frame that is not subject to flow control."""
        self.frames.append(frame)
        self.schedule_flush()

    def schedule_flush(self) -> None:
        """Flush in this iteration of the loop, unless that is certain already."""
        if not self.corked:
            self.corked = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write all frames."""
        self.corked = False
        frames, self.frames = self.frames, []
        if frames and not self._ended and not self.transport.is_closing():
            size = sum(map(len, frames))
            self.written += size
            if size <= _JOIN_BELOW:
                self.transport.write(b"".join(frames))
            else:
                write_parts(self.transport, frames)
        if self.reports_buffered:
            self.reports_buffered = self._report_buffered()

    def end(self) -> None:
        """Write all frames and end the connection's sending side; later frames are dropped."""
        self.flush()
        self._ended = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
