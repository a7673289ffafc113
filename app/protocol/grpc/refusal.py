"""Answers to clients that speak another protocol than a port, each in the client's own. No I/O."""

from typing import Final

from app.protocol.grpc import framing as wire
from app.protocol.grpc import http2 as h2
from app.protocol.grpc.header_blocks import HeaderReader
from app.protocol.http.http1 import response_head
from app.protocol.http.v2 import JSON_HEADERS, encode_error

TLS: Final = b"\x16"
"""The first byte of a TLS handshake."""
_MAX_STREAMS: Final = 16
_MAX_BLOCK: Final = 16 << 10
_TEXT_HEADERS: Final = wire.header("content-type", "text/plain; charset=utf-8")


class NotHttp2(h2.Http2Error):
    """Raised when a client has sent no connection of HTTP/2; it is answered in HTTP/1.1."""

    def answer(self, last_stream: int) -> bytes:
        return http1_refusal(str(self))


def http1_refusal(text: str) -> bytes:
    """Return a whole response of HTTP/1.1, after which the connection is to be closed."""
    body = encode_error(text)
    return response_head(400, JSON_HEADERS, len(body), False) + body


def not_a_call(status: int, text: str) -> tuple[bytes, bytes, bytes]:
    """Return header block, DATA and trailers that answer a request of HTTP/2 which is no gRPC call."""
    headers = wire.refusal_headers(status) + _TEXT_HEADERS
    return headers, text.encode(), wire.trailers(wire.UNIMPLEMENTED, text)


class Http2Refusal:
    """Ends each request of an HTTP/2 connection with the same text, at once.

    A gRPC client learns it as the status UNIMPLEMENTED, after which it does not repeat the call. Any other
    client gets a response with the status 400.
    """

    first: Final = h2.settings_frame({h2.MAX_CONCURRENT_STREAMS: _MAX_STREAMS})
    """What the connection has to send first."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._frames = h2.FrameReader(h2.DEFAULT_FRAME_SIZE)
        self._headers = HeaderReader(wire.read_head, _MAX_BLOCK)

    def feed(self, data: bytes) -> bytes:
        """Return what is to be sent after `data` was received, which begins behind the preface.

        Raises:
            Http2Error: the connection is to be closed with a GOAWAY.
        """
        frames = self._frames.feed(data)
        return b"".join(self._answer(frame) for frame in frames if isinstance(frame, h2.Frame))

    def _answer(self, frame: h2.Frame) -> bytes:
        if frame.kind == h2.SETTINGS and not frame.flags & h2.ACK:
            return h2.frame(h2.SETTINGS, h2.ACK, 0)
        if frame.kind == h2.PING and not frame.flags & h2.ACK:
            return h2.frame(h2.PING, h2.ACK, 0, frame.payload)
        if frame.kind != h2.HEADERS:  # what is left of a request that was answered
            return b""
        if not frame.flags & h2.END_HEADERS:
            raise h2.Http2Error(h2.ENHANCE_YOUR_CALM, self._text)
        head = self._headers.read(h2.unpad(frame.flags, frame.payload))
        return self._refuse(frame.stream, head.refusal)

    def _refuse(self, stream: int, refusal: int) -> bytes:
        end = h2.END_HEADERS | h2.END_STREAM
        if not refusal:
            block = wire.RESPONSE_HEADERS + wire.trailers(wire.UNIMPLEMENTED, self._text)
            return h2.frame(h2.HEADERS, end, stream, block)
        headers, body, trailers = not_a_call(400, self._text)
        return (
            h2.frame(h2.HEADERS, h2.END_HEADERS, stream, headers)
            + h2.frame(h2.DATA, 0, stream, body)
            + h2.frame(h2.HEADERS, end, stream, trailers)
        )
