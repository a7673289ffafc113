"""Connections whose client speaks another protocol than the port: it is told so in its own."""

import asyncio
from collections.abc import Callable
from typing import Final

from app.ingress.net.buffered_protocol import switch_protocol
from app.ingress.net.server_state import MAX_REFUSED, ServerState
from app.protocol.grpc import http2 as h2
from app.protocol.grpc.refusal import Http2Refusal, http1_refusal

HTTP2: Final = b"PRI"
"""How no request of HTTP/1.1 begins, and every connection of HTTP/2."""
_OPEN_S: Final = 20.0
"""Seconds for which a connection of HTTP/2 stays open: its client calls in them, or connects again."""
_LINGER_S: Final = 2.0


class RefusedHttp2(asyncio.Protocol):
    """Refuses each call of a connection of HTTP/2.

    Args:
        text: why.
        lost: called when the connection is lost.
    """

    def __init__(self, transport: asyncio.Transport, text: str, lost: Callable[[], None]) -> None:
        self._transport = transport
        self._lost = lost
        self._refusal = Http2Refusal(text)
        self._preface = b""
        self._failed = False
        transport.write(self._refusal.first)
        asyncio.get_running_loop().call_later(_OPEN_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()

    def pause_writing(self) -> None:
        self._transport.abort()  # a client that does not read one sentence

    def data_received(self, data: bytes) -> None:
        if len(self._preface) < len(h2.PREFACE):
            whole = self._preface + data
            self._preface, data = whole[: len(h2.PREFACE)], whole[len(h2.PREFACE) :]
        if self._failed or not data:
            return
        try:
            if self._preface != h2.PREFACE:
                raise h2.Http2Error(h2.PROTOCOL_ERROR, "not an HTTP/2 client")
            self._transport.write(self._refusal.feed(data))
        except h2.Http2Error as error:
            self._failed = True
            self._transport.write(h2.goaway(0, error.code, str(error)))
            asyncio.get_running_loop().call_later(_LINGER_S, self._transport.abort)


def refuse_http2(transport: asyncio.Transport, received: bytes, text: str, lost: Callable[[], None]) -> None:
    """Refuse the calls of a connection, of which something has been received; see `RefusedHttp2`."""
    protocol = RefusedHttp2(transport, text, lost)
    switch_protocol(transport, protocol)
    protocol.data_received(received)


class PlainAtTls(asyncio.Protocol):
    """Tells a client that does not speak TLS, at a port that does, in HTTP/1.1 or HTTP/2."""

    def __init__(self, state: ServerState, text: str) -> None:
        self._state = state
        self._text = text
        self._received = b""
        self._answered = False
        self._transport: asyncio.Transport = None  # type: ignore[assignment]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        if len(self._state.refused) >= MAX_REFUSED:
            self._transport.abort()
            return
        self._state.refused.add(self)
        self._state.loop.call_later(_LINGER_S, self._end)

    def _end(self) -> None:
        if not self._answered or not self._received.startswith(HTTP2):
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()

    def _lost(self) -> None:
        self._state.refused.discard(self)

    def data_received(self, data: bytes) -> None:
        self._received += data if len(self._received) < len(HTTP2) else b""
        if self._answered or len(self._received) < len(HTTP2):
            return
        self._answered = True
        if self._received.startswith(HTTP2):
            refuse_http2(self._transport, self._received, self._text, self._lost)
        else:
            self._transport.write(http1_refusal(self._text))
            self._transport.write_eof()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    drain = abort

    def check_time(self, now: float) -> None:
        """Do nothing: its time is bounded from the beginning."""
