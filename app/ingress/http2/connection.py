"""The receiving side of an HTTP/2 connection: frames, limits and timeouts; `Output` sends.

Streams, header blocks and control frames per second (resets included) are limited, so that a flood of cheap
frames costs little time and memory. Reading pauses while the client does not read its responses, and a client
that goes on not reading is disconnected.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from app.core.tensors import Buffer
from app.ingress.http2.call import refuse
from app.ingress.http2.state import Http2State
from app.ingress.http2.stream import Output, Stream, StreamReceiver
from app.ingress.http2.uploads import Uploads
from app.ingress.http2.windows import CONNECTION_WINDOW, CREDIT_FROM, MAX_FRAME, STREAM_WINDOW, first_frames
from app.ingress.net.buffered_protocol import SharedBufferProtocol, switch_protocol
from app.ingress.net.pace import Pace
from app.protocol.grpc import framing as wire
from app.protocol.grpc import http2 as h2
from app.protocol.grpc.framing import CallHead

logger = logging.getLogger(__name__)

_CHEAP_STREAMS: Final = 8
"""Number of stream windows to change that counts as one control frame."""
_HEADERS_FLAGS: Final = h2.PADDED | h2.PRIORITISED | h2.END_HEADERS


class Http2Connection(asyncio.Protocol):
    """The protocol of an accepted socket."""

    __slots__ = (
        *("_block", "_block_head", "_block_size", "_compiled", "_draining", "_failed", "_granting"),
        *("_greeted", "_handlers", "_headers", "_is_buffered", "_keepalive", "_last_stream", "_open_call"),
        *("_output", "_paused", "_preface", "_reader", "_reading", "_received", "_state", "_streams"),
        *("_transport", "_uploads"),
    )

    def __init__(
        self, state: Http2State, open_call: Callable[[Stream, CallHead], StreamReceiver | None]
    ) -> None:
        self._state = state
        self._open_call = open_call
        self._compiled = state.compiled
        self._transport: asyncio.Transport = None  # type: ignore[assignment]
        self._reader = h2.FrameReader(MAX_FRAME, long=h2.DEFAULT_FRAME_SIZE)
        self._headers = state.header_reader()
        self._preface = b""
        self._greeted = self._is_buffered = False
        self._last_stream = 0
        self._received = 0
        self._block: list[bytes] | None = None  # a header block that CONTINUATION frames complete
        self._block_head = (0, 0)
        self._block_size = 0
        settings = state.settings
        self._reading = Pace(settings.write_timeout_s, settings.min_client_rate)
        self._granting = Pace(settings.write_timeout_s, settings.min_client_rate)
        self._uploads = Uploads(settings.read_timeout_s, settings.min_client_rate)
        self._paused = self._draining = self._failed = False
        self._keepalive = h2.Keepalive(state.now())
        self._output = Output(state.loop, self._keepalive, self._report_buffered)
        self._streams = self._output.streams
        self._handlers: dict[int, Callable[[Any], None]] = {
            h2.DATA: self._on_data,
            h2.DATA_SEGMENTS: self._on_data_segments,
            h2.HEADERS: self._on_headers,
            h2.CONTINUATION: self._on_continuation,
            h2.RST_STREAM: self._on_reset,
            h2.SETTINGS: self._on_settings,
            h2.PING: self._on_ping,
            h2.WINDOW_UPDATE: self._on_window_update,
            h2.GOAWAY: self._on_goaway,
            h2.PUSH_PROMISE: self._on_push_promise,
        }

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = self._output.transport = transport  # type: ignore[assignment]
        if not self._state.admit(self):
            self._open_call, self._compiled = self._refuse_call, None
            self._state.loop.call_later(self._state.settings.linger_s, self._transport.abort)
        self._output.frames.append(first_frames(self._state.settings))  # sent once the client has begun

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.remove(self)
        self._state.send_buffers.remove(self)
        streams = list(self._streams.values())
        self._streams.clear()
        for stream in streams:
            stream.cancel()
        self._output.reports_buffered = False

    def pause_writing(self) -> None:
        self._paused = True
        self._transport.pause_reading()
        self._output.reports_buffered = True  # its flush, which calls this, reads it next

    def resume_writing(self) -> None:
        self._paused, self._keepalive.resumed = False, self._state.now()
        self._transport.resume_reading()
        self._output.reports_buffered = self._report_buffered()

    def data_received(self, data: Buffer) -> None:
        if self._failed:
            return
        self._output.corked = True  # one write for everything that is sent meanwhile
        self._keepalive.heard = self._state.now()
        try:
            if not self._greeted:
                data = self._greet(data)
            if self._compiled is not None:
                data = data[self._compiled.receive(self, data) :]
            for frame in self._reader.feed(data) if data else ():
                self._on_frame(frame)
        except h2.Http2Error as error:
            self._fail(error)
        except Exception:
            logger.exception("an HTTP/2 connection failed")
            self._fail(h2.Http2Error(h2.INTERNAL_ERROR, ""))
        self._output.flush()

    # Frames.

    def _greet(self, data: Buffer) -> bytes:
        data = self._preface + data
        if not h2.PREFACE.startswith(data[: len(h2.PREFACE)]):
            self._output.frames.clear()
            raise self._state.misdirection(data)
        if len(data) < len(h2.PREFACE):
            self._preface = data
            return b""
        self._greeted, self._preface = True, b""
        return data[len(h2.PREFACE) :]

    def _on_frame(self, frame: h2.Frame | h2.DataSegments) -> None:
        if self._block is not None and frame.kind != h2.CONTINUATION:
            raise h2.Http2Error(h2.PROTOCOL_ERROR, "a header block was interrupted")
        if frame.kind > h2.HEADERS or not frame.payload:  # neither HEADERS nor DATA
            limits = self._state.settings
            limit = limits.max_resets if frame.kind == h2.RST_STREAM else limits.max_control_frames
            self._keepalive.count(frame.kind == h2.RST_STREAM, limit)
        handler = self._handlers.get(frame.kind)
        if handler is not None:  # PRIORITY and unknown kinds are ignored
            handler(frame)

    def _on_data(self, frame: h2.Frame) -> None:
        stream = self._accept_data(frame.stream, len(frame.payload))
        if stream is not None and stream.receiver is not None:
            stream.ended = bool(frame.flags & h2.END_STREAM)
            payload = frame.payload
            if frame.flags & h2.PADDED:
                payload = h2.unpad(h2.PADDED, payload)
                stream.grant(len(frame.payload) - len(payload))
            stream.receiver.receive(payload, stream.ended)

    def _on_data_segments(self, data: h2.DataSegments) -> None:
        if not self._is_buffered:
            self._is_buffered = True
            switch_protocol(self._transport, SharedBufferProtocol(self, self._state.read_buffer))
        size = sum(map(len, data.payload))
        stream = self._accept_data(data.stream, size)
        if stream is not None and stream.receiver is not None:
            stream.ended = bool(data.flags & h2.END_STREAM)
            stream.receiver.receive_segments(data.payload, size, stream.ended)

    def _accept_data(self, stream_id: int, size: int) -> Stream | None:
        """Count DATA against the windows; return its stream, None if its call is over."""
        self._received += size
        if self._received > CONNECTION_WINDOW:
            raise h2.Http2Error(h2.FLOW_CONTROL_ERROR, "more DATA than the connection's window")
        if self._received > CREDIT_FROM:
            self._output.put(h2.window_update(0, self._received))
            self._received = 0
        stream = self._streams.get(stream_id)
        if stream is None or stream.ended or stream.receiver is None:
            if stream_id > self._last_stream or not stream_id:
                raise h2.Http2Error(h2.PROTOCOL_ERROR, "DATA on an idle stream")
            return None  # its call was ended here
        stream.received += size
        if stream.received > STREAM_WINDOW:
            self._reset(stream, h2.FLOW_CONTROL_ERROR)
            return None
        return stream

    def _on_headers(self, frame: h2.Frame) -> None:
        flags, payload = frame.flags, frame.payload
        if flags & _HEADERS_FLAGS == h2.END_HEADERS and len(payload) <= self._state.settings.max_header_size:
            self._open(frame.stream, flags, self._headers.read(payload))
            return
        self._block, self._block_head, self._block_size = [], (frame.stream, frame.flags), 0
        self._add_block(h2.unpad(frame.flags, frame.payload), frame.flags)

    def _on_continuation(self, frame: h2.Frame) -> None:
        if self._block is None or frame.stream != self._block_head[0]:
            raise h2.Http2Error(h2.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        self._add_block(frame.payload, frame.flags)

    def _add_block(self, piece: bytes, flags: int) -> None:
        assert self._block is not None
        self._block.append(piece)
        self._block_size += len(piece)
        if self._block_size > self._state.settings.max_header_size:
            raise h2.Http2Error(h2.ENHANCE_YOUR_CALM, "header block is too large")
        if flags & h2.END_HEADERS:
            block, self._block = b"".join(self._block), None
            self._open(*self._block_head, self._headers.read(block))

    def _open(self, stream_id: int, flags: int, head: CallHead) -> None:
        known = self._streams.get(stream_id)
        if known is not None:  # trailers of a request, which gRPC does not use
            if not flags & h2.END_STREAM:
                raise h2.Http2Error(h2.PROTOCOL_ERROR, "second HEADERS of a stream")
            if not known.ended and known.receiver is not None:
                known.ended = True
                known.receiver.receive(b"", True)
            return
        if stream_id <= self._last_stream or not stream_id & 1:
            if stream_id & 1:
                return  # the stream was ended here
            raise h2.Http2Error(h2.PROTOCOL_ERROR, "a stream of an even number")
        self._last_stream = stream_id
        if self._draining or len(self._streams) >= self._state.settings.max_streams:
            self._output.put(h2.rst_stream(stream_id, h2.REFUSED_STREAM))
            return
        stream = self._streams[stream_id] = Stream(self._output, stream_id)
        stream.receiver = self._open_call(stream, head)
        if flags & h2.END_STREAM and not stream.over and stream.receiver is not None:
            stream.ended = True
            stream.receiver.receive(b"", True)

    def _on_reset(self, frame: h2.Frame) -> None:
        h2.read_long(frame.payload)
        if frame.stream > self._last_stream or not frame.stream:
            raise h2.Http2Error(h2.PROTOCOL_ERROR, "RST_STREAM of an idle stream")
        stream = self._streams.pop(frame.stream, None)
        if stream is not None:
            stream.cancel()
            self._close_if_idle()

    def _on_settings(self, frame: h2.Frame) -> None:
        if frame.stream:
            raise h2.Http2Error(h2.PROTOCOL_ERROR, "SETTINGS on a stream")
        if frame.flags & h2.ACK:
            return
        settings = h2.read_settings(frame.payload)
        # Before the data that wider windows let out: until the client has read this, it holds received data
        # against its old windows.
        self._output.put(h2.frame(h2.SETTINGS, h2.ACK, 0))
        for key, value in settings.items():
            if key == h2.INITIAL_WINDOW_SIZE:
                self._change_windows(value)
            elif key == h2.MAX_FRAME_SIZE:
                self._output.allow_frames(value)

    def _change_windows(self, size: int) -> None:
        self._keepalive.count(
            False, self._state.settings.max_control_frames, len(self._streams) // _CHEAP_STREAMS
        )
        change = size - self._output.initial_window
        self._output.initial_window = size
        for stream in list(self._streams.values()):
            stream.window += change
            if stream.window > h2.MAX_WINDOW:
                raise h2.Http2Error(h2.FLOW_CONTROL_ERROR, "the window of a stream is too large")
            if stream.queue:
                stream.send_queued()

    def _on_ping(self, frame: h2.Frame) -> None:
        if len(frame.payload) != 8:
            raise h2.Http2Error(h2.FRAME_SIZE_ERROR, "PING of a wrong size")
        if frame.flags & h2.ACK:
            self._keepalive.ping_sent = 0.0
            return
        limits, is_sending = self._state.settings, bool(self._transport.get_write_buffer_size())
        if self._keepalive.too_many_pings(limits.min_ping_interval_s, limits.max_ping_strikes, is_sending):
            raise h2.Http2Error(h2.ENHANCE_YOUR_CALM, "too_many_pings")
        self._output.put(h2.frame(h2.PING, h2.ACK, 0, frame.payload))

    def _on_window_update(self, frame: h2.Frame) -> None:
        size = h2.read_long(frame.payload) & h2.MAX_WINDOW
        if not frame.stream:
            self._output.widen(size)
            return
        stream = self._streams.get(frame.stream)
        if stream is None:
            if frame.stream > self._last_stream:
                raise h2.Http2Error(h2.PROTOCOL_ERROR, "WINDOW_UPDATE of an idle stream")
            return
        stream.window += size
        if not size or stream.window > h2.MAX_WINDOW:
            self._reset(stream, h2.FLOW_CONTROL_ERROR)
            return
        if stream.queue:
            stream.send_queued()

    def _on_goaway(self, frame: h2.Frame) -> None:
        self._drain_streams()

    def _on_push_promise(self, frame: h2.Frame) -> None:
        raise h2.Http2Error(h2.PROTOCOL_ERROR, "a client may not push")

    # Streams.

    def _reset(self, stream: Stream, code: int) -> None:
        """Reset a stream."""
        del self._streams[stream.id]
        self._output.put(h2.rst_stream(stream.id, code))
        stream.cancel()
        self._close_if_idle()

    def _refuse_call(self, stream: Stream, head: CallHead) -> None:
        """Refuse the first call of a connection beyond the limit, and close it."""
        refuse(stream, wire.UNAVAILABLE, self._state.too_many)
        self.drain()

    # Ending.

    def _fail(self, error: h2.Http2Error) -> None:
        logger.debug("closing an HTTP/2 connection: %s", error)
        self._output.put(error.answer(self._last_stream))
        self._output.end()
        self._failed = True
        # Closed with data unread, the connection is reset, and the peer might not receive the GOAWAY.
        self._state.loop.call_later(self._state.settings.linger_s, self._transport.abort)

    def drain(self) -> None:
        """Accept no new calls; close after those in flight."""
        if self._failed:  # its GOAWAY is sent; it is aborted in a moment
            return
        if not self._draining:
            self._output.put(h2.goaway(self._last_stream, h2.NO_ERROR))
        self._drain_streams()

    def _drain_streams(self) -> None:
        """Open no more streams; close once the open ones have finished."""
        self._draining = True
        self._output.on_idle = self._close_if_idle
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._draining and not self._streams:
            self._output.flush()
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def buffered_bytes(self) -> int:
        """Return the response bytes that wait for windows or in the transport."""
        return self._output.queued + self._transport.get_write_buffer_size()

    evict = abort

    def _report_buffered(self) -> bool:
        return self._state.send_buffers.update(self)

    def check_time(self, now: float) -> None:
        """Ping an idle client; close the connection if it is dead, too old or blocked; end slow calls."""
        settings = self._state.settings
        output = self._output
        if self._granting.is_slow(now, bool(output.queued), output.drained):
            self._reset_stalled()
        self._end_slow_uploads(now)
        waiting = self._transport.get_write_buffer_size()
        if self._reading.is_slow(now, bool(waiting), output.written - waiting):
            self._state.send_buffers.too_slow += 1
            self.abort()
        elif self._keepalive.is_dead(now, settings.keepalive_timeout_s):
            self.abort()
        elif settings.max_age_s and now - self._keepalive.born > settings.max_age_s:
            self.drain()
            over = now - self._keepalive.born - settings.max_age_s
            if settings.max_age_grace_s and over > settings.max_age_grace_s:
                self.abort()
        elif (self._streams or settings.keepalive_without_calls) and self._keepalive.wants_ping(
            now, settings.keepalive_s
        ):
            self._output.put(h2.frame(h2.PING, 0, 0, bytes(8)))

    def _reset_stalled(self) -> None:
        """Reset the calls whose responses wait because the client grants their bytes too slowly."""
        for stream in [stream for stream in self._streams.values() if stream.queue]:
            self._state.send_buffers.too_slow += 1
            self._reset(stream, h2.CANCEL)

    def _end_slow_uploads(self, now: float) -> None:
        """End the calls whose requests arrive too slowly."""
        if self._paused:
            self._uploads.pause()
            return
        for stream in self._uploads.slow(now, self._streams):
            if stream.receiver is not None:
                self._state.send_buffers.too_slow += 1
                stream.receiver.end(wire.DEADLINE_EXCEEDED, self._uploads.text)
