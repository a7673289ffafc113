"""A client that sends HTTP/2 frames of any kind."""

import socket
from collections import deque
from collections.abc import Callable
from typing import Any

import hpack

from app.ingress.http2.connection import Http2Connection
from app.protocol.grpc import http2 as h2
from tests.unit.app.ingress.http2.http2_running import WAIT_S, Running


def decoded(block: bytes) -> Any:
    return hpack.Decoder().decode(block)


class Raw:
    """A client that sends raw frames."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self.encoder = hpack.Encoder()
        self.reader = h2.FrameReader(1 << 24)
        self.unread: deque[Any] = deque()  # received behind the last frame that was wanted
        self.send(h2.PREFACE + h2.settings_frame({}))

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def call(self, stream: int, name: str = "echo", flags: int = 0, *more: tuple[str, str]) -> bytes:
        path = f"/test.Test/{name}"
        block = self.encoder.encode(
            [(":method", "POST"), (":path", path), ("content-type", "application/grpc"), *more]
        )
        return h2.frame(h2.HEADERS, h2.END_HEADERS | flags, stream, block)

    def frames(self, until: Callable[[Any], bool]) -> list[Any]:
        """Frames up to the first that is wanted, or to the end of the connection."""
        found: list[Any] = []
        while True:
            while self.unread:
                found.append(self.unread.popleft())
                if until(found[-1]):
                    return found
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                return found
            self.unread.extend(self.reader.feed(data))

    def goaway(self) -> tuple[int, bytes]:
        """Code and text of the GOAWAY that ends the connection."""
        frames = self.frames(lambda frame: frame.kind == h2.GOAWAY)
        assert frames[-1].kind == h2.GOAWAY, frames[-3:]
        return int.from_bytes(frames[-1].payload[4:8], "big"), frames[-1].payload[8:]


def only_connection(running: Running) -> Http2Connection:
    (connection,) = running.server.state.connections
    assert isinstance(connection, Http2Connection)
    return connection


Connect = Callable[[Running], Raw]
"""Makes clients, which are closed at the end of the test."""
