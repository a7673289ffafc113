"""Requests served by an ASGI application."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from app.core.errors import internal
from app.core.system.tasks import Tasks
from app.ingress.http1.exchange import Exchange
from app.protocol.http.http1 import RequestHead

Message = MutableMapping[str, Any]
AsgiApp = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]


class AsgiRoute:
    """Runs an ASGI application in a task for each request.

    The task is not cancelled when its client disconnects, so that a started load completes.
    """

    def __init__(self, app: AsgiApp, head: RequestHead, tasks: Tasks) -> None:
        self._app = app
        self._head = head
        self._tasks = tasks

    def start(self, exchange: Exchange, body: memoryview) -> None:
        """Answer one request."""
        call = _AsgiCall(exchange, bytes(body))
        self._tasks.start(call.run(self._app, self._scope()))

    def _scope(self) -> dict[str, Any]:
        head = self._head
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": head.version,
            "method": head.method,
            "scheme": "http",
            "path": head.prefix
            + head.path,  # as ASGI has it: with `root_path`, which routes are found without
            "raw_path": (head.prefix + head.path).encode(),
            "query_string": head.query,
            "root_path": head.prefix,
            "headers": list(head.headers),
            "client": None,
            "server": None,
            "state": {},
        }


class _AsgiCall:
    def __init__(self, exchange: Exchange, body: bytes) -> None:
        self._exchange = exchange
        self._body: bytes | None = body
        self._disconnected = asyncio.Event()
        self._status = 0
        self._headers = b""
        self._streaming = False
        exchange.on_disconnect = self._disconnected.set

    async def run(self, app: AsgiApp, scope: dict[str, Any]) -> None:
        try:
            await app(scope, self.receive, self.send)
            if not self._exchange.closed:
                raise RuntimeError("the application did not complete its response")
        except Exception as error:
            if self._streaming:
                self._exchange.abort()
            else:
                self._exchange.fail(error)

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = _lines(message.get("headers", ()))
        elif message["type"] == "http.response.body":
            await self._send_body(message.get("body", b""), message.get("more_body", False))
        else:
            raise internal(f"unexpected ASGI message '{message['type']}'")

    async def _send_body(self, body: bytes, more: bool) -> None:
        if not self._streaming and not more:
            self._exchange.respond(self._status, self._headers, (body,))
            return
        if not self._streaming:
            self._streaming = True
            self._exchange.begin(self._status, self._headers)
        self._exchange.send(body)
        if more:
            await self._exchange.drained()
        else:
            self._exchange.finish()


def _lines(headers: Any) -> bytes:
    """Return header lines, without those about framing, which the connection adds."""
    kept = [
        (bytes(name), bytes(value))
        for name, value in headers
        if name.lower() not in (b"content-length", b"transfer-encoding", b"connection")
    ]
    return b"".join(b"%s: %s\r\n" % pair for pair in kept)
