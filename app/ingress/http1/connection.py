"""An HTTP/1.1 connection: framing, order, limits and back-pressure.

Requests are answered one after the other; those that a pipelining client sends ahead are buffered, up to a
limit. A route gets the whole body as one buffer. A long body is received directly into it, without a copy,
and touches no more memory than bytes have arrived.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from app.core.tensors import Buffer
from app.ingress.http1.body import ChunkedRequest, InPlaceProtocol, Receiving, RoutedHead, SizedBody
from app.ingress.http1.exchange import Exchange, Recognised, Recogniser, describe_error
from app.ingress.http1.half_closed import HalfClosed
from app.ingress.http1.state import HttpState
from app.ingress.net.buffered_protocol import switch_protocol
from app.ingress.net.misdirected import HTTP2, refuse_http2
from app.ingress.net.pace import Pace
from app.ingress.net.peer import peer_name
from app.ingress.net.writing import write_parts
from app.protocol.grpc.refusal import TLS
from app.protocol.http.http1 import CONTINUE, HttpError, parse_head, response_head, too_large
from app.protocol.http.v2 import JSON_HEADERS, encode_error
from app.protocol.status import http_status

_IN_PLACE: Final = 64 << 10
"""Missing bytes from which a body is received in place."""
_MAX_AHEAD: Final = 64 << 10
"""Bytes of pipelined requests buffered while a request is answered."""


class HttpConnection(asyncio.Protocol):
    """The protocol of an accepted socket."""

    def __init__(self, state: HttpState) -> None:
        self._state = state
        self._settings = state.settings
        self._heads = state.heads
        self._recogniser = state.recogniser
        self._transport: asyncio.Transport = None  # type: ignore[assignment]
        self._exchange: Exchange | Recognised | None = None
        self._ahead = b""
        self._receiving: Receiving | None = None
        self._in_place: InPlaceProtocol | None = None
        self._drain_waiter: asyncio.Future[None] | None = None
        self._blocked_since = 0.0
        self._begun = 0.0
        self._sending = Pace(self._settings.read_timeout_s, self._settings.min_client_rate)
        self._reading = Pace(self._settings.write_timeout_s, self._settings.min_client_rate)
        self._received = 0
        self._rejected = False
        self._answered = 0
        self._answered_before = -1  # at the last idle check
        self._idle_since = 0.0
        self._half_closed: HalfClosed | None = None
        self.keeps_alive = True

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        # A connection is blocked until all is sent: what waits then only becomes less, which is progress.
        self._transport.set_write_buffer_limits(self._settings.write_buffer_bytes, 0)
        if not self._state.admit(self):
            self._heads = self._state.no_heads  # its first request is new, for `_new_head` to refuse
            self._recogniser = None
            self._state.loop.call_later(self._settings.linger_s, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.remove(self)
        self._state.send_buffers.remove(self)
        self._half_closed = None
        self._release()
        if self._in_place is not None:  # frees a partial body and breaks a reference cycle
            self._in_place.receiving = None
            self._in_place = None
        self._wake()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.disconnect()

    def eof_received(self) -> bool:
        """Keep a connection open on which answers are due: its client may read on."""
        due = self._exchange is not None or bool(self._ahead and not self._begun)
        if due and self._transport.can_write_eof():  # TLS has no half-closed connections
            self._half_closed = HalfClosed(self._state.loop, self._transport, self._question)
        return self._half_closed is not None

    def _question(self) -> bytes:
        exchange = self._exchange
        if isinstance(exchange, Exchange):
            return exchange.question()
        return CONTINUE if exchange is not None and exchange.owner.head.version == "1.1" else b""

    def pause_writing(self) -> None:
        self._blocked_since = self._state.now()
        self._transport.pause_reading()
        self._state.send_buffers.update(self)

    def resume_writing(self) -> None:
        self._state.send_buffers.remove(self)
        self._blocked_since = 0.0
        self._wake()
        self._resume_reading()
        if self._exchange is None and self._ahead:
            self._next()

    def data_received(self, data: bytes) -> None:
        if self._rejected:
            return
        if self._exchange is not None:
            self._buffer_ahead(data)
        elif self._receiving is not None:
            self._receive(data)
        elif self._ahead:
            self._parse(self._ahead + data)
        elif self._recogniser is None or not self._recognise(self._recogniser, data):
            self._parse(data)

    # Receiving.

    def _buffer_ahead(self, data: bytes) -> None:
        self._ahead += data
        if len(self._ahead) > _MAX_AHEAD:
            self._transport.pause_reading()

    def _parse(self, data: bytes) -> None:
        """Parse the request at the beginning of `data`."""
        end = data.find(b"\r\n\r\n") + 4
        routed = self._heads.get(data[:end])
        if routed is None:
            if data[:1] in (b"\r", b"\n"):  # RFC 9112, section 2.2: tolerated between requests
                data = data.lstrip(b"\r\n")
                end = data.find(b"\r\n\r\n") + 4
            if end < 4:
                self._await_head(data)
                return
            if data.startswith(HTTP2):
                self._refuse_http2(data)
                return
            routed = self._new_head(data[:end])
            if routed is None:
                return
        length = routed.head.content_length
        if length is not None and length <= len(data) - end:
            self._ahead = data[end + length :]
            self._start(routed, memoryview(data)[end : end + length])
            if self._recogniser is not None and end + length == len(data):
                self._recogniser.learn(routed, data, end)
        else:
            self._begin_body(routed, data[end:])

    def _await_head(self, data: bytes) -> None:
        self._ahead = data
        if self._half_closed is not None:
            self._transport.close()
        elif len(data) > self._settings.max_head_bytes:
            self._reject(HttpError(431, "Request Header Fields Too Large"))
        elif data[:1] == TLS:  # its client would wait for us, and we for the end of its head
            self._state.warn_once("a client speaks TLS to the HTTP port, which does not: see --http-use-ssl")
            self._reject(HttpError(400, "this port does not speak TLS: use http://"))
        elif data and not self._begun:
            self._begun = self._state.now()

    def _new_head(self, data: bytes) -> RoutedHead | None:
        if self._heads is self._state.no_heads:
            self._reject(HttpError(503, self._state.too_many), b"Retry-After: 1\r\n")
            return None
        try:
            if len(data) > self._settings.max_head_bytes:
                raise HttpError(431, "Request Header Fields Too Large")
            head = parse_head(data)
        except Exception as error:
            self._refuse(error)
            return None
        return self._state.add_head(data, head)

    def _begin_body(self, routed: RoutedHead, data: bytes) -> None:
        length, limit = routed.head.content_length, self._settings.max_body_bytes
        if length is not None and length > limit:
            self._reject(too_large(length, limit))
            return
        if routed.head.expects_continue and not data:
            self._transport.write(CONTINUE)
        self._ahead = b""
        self._begun = self._begun or self._state.now()
        try:
            self._receiving = ChunkedRequest(routed, limit) if length is None else SizedBody(routed, length)
        except MemoryError:
            self._reject(HttpError(503, "the server has no memory for the request"))
            return
        self._receive(data)
        if self._receiving is not None and self._half_closed is not None:
            self._transport.close()

    def _receive(self, data: bytes) -> None:
        receiving = self._receiving
        if receiving is None or not self._reserve(len(data)):
            return
        try:
            rest = receiving.feed(data)
        except Exception as error:
            self._refuse(error)
            return
        if rest is not None:
            self._ahead = rest
            self._body_complete()
        elif isinstance(receiving, SizedBody) and (self._in_place or receiving.missing >= _IN_PLACE):
            self._receive_in_place(receiving)

    def _receive_in_place(self, receiving: SizedBody) -> None:
        if self._in_place is None:
            self._in_place = InPlaceProtocol(self, self._state.read_buffer)
            switch_protocol(self._transport, self._in_place)
        self._in_place.receiving = receiving

    def on_received_in_place(self, size: int, receiving: SizedBody) -> None:
        """Handle bytes received in place."""
        if self._reserve(size) and not receiving.missing and self._in_place is not None:
            self._in_place.receiving = None
            self._body_complete()

    def _reserve(self, size: int) -> bool:
        """Count received body bytes as buffered; over the limit, reject the request and return False."""
        self._received += size
        self._state.buffered += size
        if self._state.buffered <= self._settings.max_buffered_bytes:
            return True
        self._reject(HttpError(503, "request buffer limit of the server exceeded"))
        return False

    def _release(self) -> None:
        self._state.buffered -= self._received
        self._received = 0
        self._begun = 0.0
        self._receiving = None

    def _body_complete(self) -> None:
        assert self._receiving is not None
        routed, body = self._receiving.routed, self._receiving.body
        self._receiving = None
        self._start(routed, body)

    def _refuse_http2(self, data: bytes) -> None:
        """Let another protocol tell the client, most often one of gRPC, that it is at the wrong port."""
        self._release()
        self._ahead = b""
        self._rejected = True
        refuse_http2(self._transport, data, self._state.misdirected, partial(self.connection_lost, None))

    # Answering.

    def _recognise(self, recogniser: Recogniser, data: bytes) -> bool:
        """Start to answer a request that the recogniser reads; return whether it does."""
        found = self._exchange = recogniser.match(data, self)
        if found is None:
            return False
        try:
            if found.owner.start(found):
                return True
        except Exception as error:
            exchange = self._exchange = Exchange(self, found.owner.head)
            exchange.fail(error)
            return True
        self._exchange = None
        return False

    def go_on(self, exchange: Exchange) -> None:
        """Answer the request that was recognised by this exchange."""
        self._exchange = exchange

    def _start(self, routed: RoutedHead, body: memoryview) -> None:
        begun, self._begun = self._begun, 0.0
        exchange = self._exchange = Exchange(self, routed.head, begun)
        try:
            routed.route.start(exchange, body)
        except Exception as error:
            exchange.fail(error)

    def exchange_done(self, keep_alive: bool) -> None:
        """Continue with the next request after a complete response."""
        self._exchange = None
        self._answered += 1
        if self._received:
            self._release()
        if not keep_alive or (self._half_closed is not None and not self._ahead):
            self._transport.close()
        elif self._ahead and not self._blocked_since:
            # Not directly: the response may have been written from within the start of its request.
            self._state.loop.call_soon(self._next)

    def _next(self) -> None:
        if self._exchange is None and self._ahead and not self._transport.is_closing():
            self._resume_reading()
            self._parse(self._ahead)

    def _resume_reading(self) -> None:
        if self._half_closed is None:
            self._transport.resume_reading()

    def _refuse(self, error: Exception) -> None:
        """Reject a request that cannot be read: no one knows where the next one begins."""
        if not isinstance(error, HttpError):
            failure = describe_error(error, "an HTTP request")
            error = HttpError(http_status(failure), failure.message)
        self._reject(error)

    def _reject(self, error: HttpError, headers: bytes = b"") -> None:
        """Answer a request with an error without reading the rest of it, and close."""
        self._release()
        self._ahead = b""
        self._rejected = True
        self.keeps_alive = False
        self._in_place = None
        switch_protocol(self._transport, self)
        body = encode_error(error.message)
        self._transport.write(response_head(error.status, JSON_HEADERS + headers, len(body), False) + body)
        # Closing with data unread resets the connection, and the client might not receive the response: data
        # is received and discarded for a moment first.
        if self._transport.can_write_eof():  # TLS has no half-closed connections
            self._transport.write_eof()
        self._state.loop.call_later(self._settings.linger_s, self._transport.abort)

    def peer(self) -> str:
        return peer_name(self._transport)

    def write(self, data: Buffer) -> None:
        self._transport.write(data)

    def write_parts(self, parts: Sequence[Buffer]) -> None:
        write_parts(self._transport, parts)

    async def drained(self) -> None:
        """Wait until the transport accepts more data."""
        if self._blocked_since:
            self._drain_waiter = self._state.loop.create_future()
            await self._drain_waiter

    def _wake(self) -> None:
        waiter, self._drain_waiter = self._drain_waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # Calls of the server.

    def drain(self) -> None:
        """Close after the request in flight or the next; without one, after a moment.

        A client may be about to send one, and finds no other way in: the server listens no more.
        """
        self.keeps_alive = False
        self._state.loop.call_later(self._settings.drain_idle_s, self._close_unused)

    def _close_unused(self) -> None:
        if self._exchange is None and not self._begun and not self._ahead:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def buffered_bytes(self) -> int:
        """Return the response bytes in the transport's buffer."""
        return self._transport.get_write_buffer_size()

    evict = abort

    def check_time(self, now: float) -> None:
        """Close the connection if its client sends or reads too slowly, or is idle too long."""
        if self._reading.is_slow(now, self._blocked_since, -self._transport.get_write_buffer_size()):
            self._state.send_buffers.too_slow += 1
            self._transport.abort()
        elif self._blocked_since:
            return
        elif self._sending.is_slow(now, self._begun, self._received):
            self._state.send_buffers.too_slow += 1
            self._reject(HttpError(408, "Request Timeout"))
        elif self._exchange is None and not self._begun:
            self._check_idle(now)

    def _check_idle(self, now: float) -> None:
        if self._answered != self._answered_before:
            self._answered_before, self._idle_since = self._answered, now
        elif self._settings.idle_timeout_s and now - self._idle_since > self._settings.idle_timeout_s:
            self._close_idle()

    def _close_idle(self) -> None:
        if self._transport.get_write_buffer_size():  # its client may never read that
            self._transport.abort()
        else:
            self._transport.close()
