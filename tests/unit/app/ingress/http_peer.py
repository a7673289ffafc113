"""An HTTP front on a port, raw connections to it, and requests to send."""

import asyncio
import json
from contextlib import asynccontextmanager, suppress

from app.ingress.rest.front import HttpFront
from app.settings.fronts import Http1Settings, HttpSettings
from tests.unit.app.http_fakes import FakeService

INFER = "/v2/models/identity/infer"


class Peer:
    """A raw client connection."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def send(self, data):
        self.writer.write(data)
        await self.writer.drain()

    async def response(self):
        """Return status, headers (names in lower case) and body."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-2])}
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(head[0].split()[1]), headers, body

    async def ask(self, data):
        await self.send(data)
        return await self.response()

    async def at_end(self):
        with suppress(ConnectionResetError):
            return await self.reader.read() == b""
        return True

    def close(self):
        self.writer.close()


@asynccontextmanager
async def fronted(service=None, send_buffers=None, settings=None, **limits):
    http1, settings = Http1Settings(**({"linger_s": 0.2} | limits)), settings or {}
    service = service or FakeService()
    front = HttpFront(service, HttpSettings(**settings, http1=http1), send_buffers=send_buffers)
    port = await front.start("127.0.0.1", 0)
    peers = []

    async def connect():
        peers.append(Peer(*await asyncio.open_connection("127.0.0.1", port)))
        return peers[-1]

    front.connect, front.bound, front.fake = connect, port, service
    try:
        yield front
    finally:
        for peer in peers:
            peer.close()
        await front.stop(1.0)
        assert (front.connections, front.buffered_bytes) == (0, 0)


def request(path, body=b"", *headers, method="POST"):
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def infer_document(data, **fields):
    shape = [1, len(data)]
    return {"inputs": [{"name": "INPUT0", "shape": shape, "datatype": "FP32", "data": data}], **fields}


def json_infer(data=(1, 2), **fields):
    return request(INFER, json.dumps(infer_document(list(data), **fields)).encode())


def binary_infer(array, *headers, path=INFER):
    described = {
        "shape": list(array.shape),
        "datatype": "FP32",
        "parameters": {"binary_data_size": array.nbytes},
    }
    document = {"inputs": [{"name": "INPUT0", **described}], "parameters": {"binary_data_output": True}}
    header = json.dumps(document).encode()
    length = f"Inference-Header-Content-Length: {len(header)}"
    return request(path, header + array.tobytes(), length, *headers)
