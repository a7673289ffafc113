"""No request holds the loop of a front, in processor time: others on the machine lengthen it little."""

import asyncio
import gzip
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from tests.unit.app.ingress.http_peer import INFER, Front, binary_infer, fronted, infer_document, request
from tests.unit.app.ingress.rest.generate_requests import (
    GENERATE,
    LAST,
    STREAM,
    asked,
    asking,
    decoupled,
    numbered,
)
from tests.waiting import until

MOST_S = 0.001
TRIES = 5
"""Another process that comes in between costs a callback its caches: the least of some tries counts."""
MANY = 60_000
"""Numbers: as JSON they take a processor 3 ms to read, and 3 ms to write."""
VALUES = np.round(np.random.default_rng(0).standard_normal((1, MANY)), 3).astype(np.float32)
TEXT = json.dumps(infer_document(VALUES[0].tolist())).encode()


class Longest:
    """Measures the callbacks of asyncio's loops."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._counts = True

    def measured(self, handle: Any, run: Callable[[Any], None]) -> None:
        self._counts, began = True, time.thread_time()
        run(handle)
        if self._counts:
            self.seconds = max(self.seconds, time.thread_time() - began)

    def ignore(self) -> None:
        """Do not count the callback that calls this."""
        self._counts = False


@pytest.fixture
def longest(monkeypatch: pytest.MonkeyPatch) -> Longest:
    found, run = Longest(), asyncio.Handle._run
    monkeypatch.setattr(asyncio.Handle, "_run", lambda handle: found.measured(handle, run))
    return found


async def least(longest: Longest, once: Callable[[], Coroutine[Any, Any, None]]) -> float:
    """Return the longest callback of the try in which it was shortest, after one that warms up."""
    await once()
    tries = []
    for _ in range(TRIES):
        longest.seconds = 0.0
        await once()
        tries.append(longest.seconds)
    return min(tries)


class Client:
    """Sends and receives in another thread, whose time does not count."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 20)
        self._file = self._socket.makefile("rb")

    async def ask(self, data: bytes, status: int = 200) -> None:
        assert await asyncio.to_thread(self._ask, data) == status

    def _ask(self, data: bytes) -> int:
        self._socket.sendall(data)
        found, length = int(self._file.readline().split()[1]), 0
        while (line := self._file.readline()) != b"\r\n":
            if line.lower().startswith(b"content-length:"):
                length = int(line.split()[1])
        assert len(self._file.read(length)) == length
        return found

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@asynccontextmanager
async def client(front: Front) -> AsyncIterator[Client]:
    made = await asyncio.to_thread(Client, front.port)
    try:
        yield made
    finally:
        made.close()


def compressed(data: bytes) -> bytes:
    """Return a request with its body compressed."""
    head, body = data.split(b"\r\n\r\n", 1)
    lines = [
        line for line in head.decode().split("\r\n")[1:] if not line.startswith(("Content-Length", "Host"))
    ]
    return request(INFER, gzip.compress(body), "Content-Encoding: gzip", *lines)


REQUESTS = {
    "JSON": request(INFER, TEXT),
    "generate": asking(GENERATE, json.dumps({"INPUT0": VALUES[0].tolist()}).encode()),
    "binary": binary_infer(np.zeros((1, 150_000), np.float32)),
    "compressed": compressed(binary_infer(np.tile(VALUES, 3))),
    "compressed answer": binary_infer(VALUES, "Accept-Encoding: gzip"),
}


@pytest.mark.parametrize("kind", REQUESTS)
async def test_a_large_request_does_not_hold_the_loop(longest: Longest, kind: str) -> None:
    async with fronted() as front, client(front) as peer:
        assert await least(longest, lambda: peer.ask(REQUESTS[kind])) < MOST_S


async def test_a_stream_is_written_in_turns(longest: Longest) -> None:
    responses = [numbered(number) for number in range(2000)]
    async with decoupled() as (front, peer):

        async def once() -> None:
            model = await asked(front, peer, asking(STREAM))
            longest.ignore()
            model.answer(*responses, LAST)
            seen = 0
            while seen < len(responses):
                seen += (await peer.reader.readuntil(b"\n\n\r\n")).count(b"data: ")
            await peer.reader.readuntil(b"0\r\n\r\n")

        assert await least(longest, once) < MOST_S


async def test_idle_connections_are_checked_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fronted() as front:
        peers = [await front.connect() for _ in range(400)]
        await until(lambda: front.connections == len(peers))
        checked: list[float] = []
        for connection in front.open_connections():
            monkeypatch.setattr(connection, "check_time", checked.append)
        front._server._check_connections()
        assert 0 < len(checked) < len(peers)
        await until(lambda: len(checked) >= len(peers))
