"""An HTTP front on a port, raw connections to it, and requests to send."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import numpy as np

from app.ingress.http1.connection import HttpConnection
from app.ingress.net.slow_clients import SendBufferLimit
from app.ingress.rest.front import HttpFront
from app.settings.fronts import Http1Settings, HttpSettings
from tests.unit.app.http_fakes import FakeService

Run = Callable[[Coroutine[Any, Any, object]], None]
"""Runs a coroutine on an event loop of its own, until its end."""

INFER = "/v2/models/identity/infer"


class Peer:
    """A raw client connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def response(self) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers (names in lower case) and body."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-2])}
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(head[0].split()[1]), headers, body

    async def ask(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        await self.send(data)
        return await self.response()

    async def at_end(self) -> bool:
        with suppress(ConnectionResetError):
            return await self.reader.read() == b""
        return True

    def pause(self) -> None:
        """Read nothing more, but by `take`."""
        self.writer.transport.pause_reading()  # type: ignore[attr-defined]

    def take(self, size: int) -> bool:
        """Read up to `size` bytes that wait in the kernel, and lose them; return True."""
        with suppress(BlockingIOError):
            os.read(self.writer.get_extra_info("socket").fileno(), size)
        return True

    def close(self) -> None:
        self.writer.close()


class Front(HttpFront):
    """A front that listens on a port, and connections to it.

    Attributes:
        fake: the service behind it.
        port: where it listens.
    """

    port: int

    def __init__(
        self, fake: FakeService, settings: HttpSettings, send_buffers: SendBufferLimit | None
    ) -> None:
        super().__init__(fake, settings, send_buffers=send_buffers)
        self.fake = fake
        self._peers: list[Peer] = []

    async def connect(self) -> Peer:
        self._peers.append(Peer(*await asyncio.open_connection("127.0.0.1", self.port)))
        return self._peers[-1]

    def open_connections(self) -> list[HttpConnection]:
        return [each for each in self._server.state.connections if isinstance(each, HttpConnection)]

    def disconnect(self) -> None:
        """Close all connections."""
        for peer in self._peers:
            peer.close()


@asynccontextmanager
async def fronted(
    service: FakeService | None = None,
    send_buffers: SendBufferLimit | None = None,
    settings: Mapping[str, Any] | None = None,
    **limits: Any,
) -> AsyncIterator[Front]:
    http1 = Http1Settings(**({"linger_s": 0.2} | limits))
    front = Front(service or FakeService(), HttpSettings(**(settings or {}), http1=http1), send_buffers)
    front.port = await front.start("127.0.0.1", 0)
    try:
        yield front
    finally:
        front.disconnect()
        await front.stop(1.0)
        assert (front.connections, front.buffered_bytes) == (0, 0)


def request(path: str, body: bytes = b"", *headers: str, method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def infer_document(data: Sequence[float], **fields: Any) -> dict[str, Any]:
    shape = [1, len(data)]
    return {"inputs": [{"name": "INPUT0", "shape": shape, "datatype": "FP32", "data": data}], **fields}


def json_infer(data: Sequence[float] = (1, 2), **fields: Any) -> bytes:
    return request(INFER, json.dumps(infer_document(list(data), **fields)).encode())


def binary_infer(array: np.ndarray, *headers: str, path: str = INFER) -> bytes:
    described = {
        "shape": list(array.shape),
        "datatype": "FP32",
        "parameters": {"binary_data_size": array.nbytes},
    }
    document = {"inputs": [{"name": "INPUT0", **described}], "parameters": {"binary_data_output": True}}
    header = json.dumps(document).encode()
    length = f"Inference-Header-Content-Length: {len(header)}"
    return request(path, header + array.tobytes(), length, *headers)
