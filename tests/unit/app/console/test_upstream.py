"""Streams through the console: piece by piece, ended early by either side."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from app.console.server import Console, Place
from app.console.upstream import Upstream
from app.transport.loops.thread import LoopThread

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
ASK = b"POST /v2/models/m/generate_stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"


class Server:
    """Accepts one request, and answers as the test says."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.accepted = threading.Event()
        self.connection: socket.socket | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        self.connection, _ = self._listener.accept()
        self.connection.settimeout(30)
        received = b""
        while not received.endswith(b"{}"):
            received += self.connection.recv(65536)
        self.accepted.set()

    def send(self, data: bytes) -> None:
        assert self.accepted.wait(30) and self.connection is not None
        self.connection.sendall(data)

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self._listener.close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def client(server: Server) -> Iterator[socket.socket]:
    """A connection to a console of the server."""
    loop = LoopThread("console")
    console = Console(Upstream(f"http://127.0.0.1:{server.port}"), Place(port=0))
    console._sources.open = lambda: None  # type: ignore[method-assign]  # the server answers one request
    port = loop.call(console.start())
    with closing(socket.create_connection(("127.0.0.1", port), 30)) as made:
        made.sendall(ASK)
        yield made
    loop.call(console.stop())
    loop.stop()


def read_until(client: socket.socket, end: bytes) -> bytes:
    received = b""
    while end not in received:
        received += client.recv(65536)
    return received


def test_pieces_arrive_as_they_are_sent(server: Server, client: socket.socket) -> None:
    server.send(HEAD + b"7\r\ndata: 1\r\n")
    assert b"text/event-stream" in read_until(client, b"data: 1")
    server.send(b"7\r\ndata: 2\r\n0\r\n\r\n")
    assert read_until(client, b"0\r\n\r\n").count(b"data: 2") == 1


def test_answer_that_breaks_off_is_not_taken_for_whole(server: Server, client: socket.socket) -> None:
    server.send(HEAD + b"7\r\ndata: 1\r\n")
    read_until(client, b"data: 1")
    server.close()
    rest = b""
    with suppress(ConnectionResetError):
        while piece := client.recv(65536):
            rest += piece
    assert not rest.endswith(b"0\r\n\r\n")  # the end of a whole answer


def test_page_that_is_left_cancels_its_request(server: Server, client: socket.socket) -> None:
    assert server.accepted.wait(30) and server.connection is not None
    client.close()
    assert server.connection.recv(1) == b""
