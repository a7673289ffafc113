"""An HTTP/2 server on its own event loop, over an echo service."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

from app.core.errors import not_found
from app.core.tensors import Buffer
from app.ingress.http2.call import OpenCall, UnaryCall, coroutine_handler
from app.ingress.http2.server import Http2Server
from app.ingress.http2.streaming_call import StreamingCall
from app.ingress.net.slow_clients import SendBufferLimit
from app.settings.fronts import Http2Settings

WAIT_S = 30.0
UNTIL_IT_ARRIVES = (0.2, 2.0, 20.0)
"""Seconds that a call without an answer is given: on a busy machine the first may pass before it arrives."""


class Handlers:
    """An echo service; `cancelled` is set when a call that never answers is cancelled."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.started = threading.Semaphore(0)
        self.held: UnaryCall | None = None

    async def echo(self, message: Buffer) -> bytes:
        return bytes(message)

    async def blow(self, message: Buffer) -> bytes:
        return bytes(int(bytes(message)))

    async def fail(self, message: Buffer) -> bytes:
        raise not_found("größer als 100%")

    async def crash(self, message: Buffer) -> bytes:
        raise RuntimeError("secret")

    def describe(self, call: UnaryCall, message: Buffer) -> None:
        call.respond((f"{dict(call.metadata)['x-own']!s} {call.deadline - time.monotonic()}".encode(),))

    async def hang(self, message: Buffer) -> bytes:
        self.started.release()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return b""

    async def both(self, requests: AsyncIterator[Buffer], call: StreamingCall) -> None:
        async for message in requests:
            await call.write(bytes(message))
            await call.write(bytes(message))

    async def generate(self, requests: AsyncIterator[Buffer], call: StreamingCall) -> None:
        async for message in requests:
            await call.write(bytes(message) * 2)

    async def large(self, requests: AsyncIterator[Buffer], call: StreamingCall) -> None:
        async for message in requests:
            await call.write(bytes(int(bytes(message))))

    def direct(self, call: UnaryCall, message: Buffer) -> None:
        """Answers at once, later, with an error or never, as the message says."""
        loop = asyncio.get_running_loop()
        kind = message[:5]
        if kind == b"later":
            loop.call_later(0.01, call.respond, (message[:1], memoryview(message)[1:]))
        elif kind == b"never":
            self.held = call
            call.on_cancel = self.cancelled.set
            self.started.release()
        elif kind == b"wrong":
            call.fail(not_found("größer als 100%"))
        else:
            call.respond((message,))

    def unopened(self, *_: Any) -> None:
        raise KeyError("of the method")

    def methods(self) -> dict[str, OpenCall]:
        methods: dict[str, OpenCall] = {
            "direct": partial(UnaryCall, self.direct),
            "describe": partial(UnaryCall, self.describe),
            "both": partial(StreamingCall, self.both),
            "large": partial(StreamingCall, self.large),
            "generate": partial(StreamingCall, self.generate),
            "unopened": self.unopened,
        }
        for handler in (self.echo, self.blow, self.fail, self.crash, self.hang):
            methods[handler.__name__] = partial(UnaryCall, coroutine_handler(handler))
        return {f"/test.Test/{name}": open_call for name, open_call in methods.items()}


class Running:
    """A server on its own event loop."""

    def __init__(self, settings: Http2Settings, send_buffers: SendBufferLimit | None = None) -> None:
        self.handlers = Handlers()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.server: Http2Server = self.run(self._start(settings, send_buffers))
        self.port: int = self.run(self.server.listen("127.0.0.1", 0))

    async def _start(self, settings: Http2Settings, send_buffers: SendBufferLimit | None) -> Http2Server:
        return Http2Server(settings, self.handlers.methods(), send_buffers=send_buffers)

    def run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(WAIT_S)

    def stop(self) -> None:
        self.run(self.server.stop(0.1))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(WAIT_S)
        self.loop.close()


Start = Callable[..., Running]
