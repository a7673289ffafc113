"""An HTTP/2 server on a loop of its own, over an echo service."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from app.core.tensors import Buffer
from app.ingress.http2.call import DirectCall
from app.ingress.http2.server import Http2Server, Http2Settings
from app.ingress.net.slow_clients import SendBufferLimit

WAIT_S = 10.0


class Handlers:
    """An echo service; `cancelled` is set when a call that never answers is cancelled."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.started = threading.Semaphore(0)
        self.held: DirectCall | None = None

    async def echo(self, message: bytes, context: Any) -> bytes:
        return message

    async def blow(self, message: bytes, context: Any) -> bytes:
        return bytes(int(message))

    async def fail(self, message: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.NOT_FOUND, "größer als 100%")
        raise AssertionError

    async def crash(self, message: bytes, context: Any) -> bytes:
        raise RuntimeError("secret")

    async def tell(self, message: bytes, context: Any) -> bytes:
        remaining = context.time_remaining()
        return f"{dict(context.invocation_metadata())['x-own']} {remaining}".encode()

    async def hang(self, message: bytes, context: Any) -> bytes:
        self.started.release()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return b""

    async def both(self, requests: AsyncIterator[bytes], context: Any) -> None:
        async for message in requests:
            await context.write(message)
            await context.write(message)

    async def generate(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for message in requests:
            yield message * 2

    def direct(self, call: DirectCall, message: Buffer) -> None:
        """Answers at once, later, with an error or never, as the message says."""
        loop = asyncio.get_running_loop()
        kind = message[:5]
        if kind == b"later":
            loop.call_later(0.01, call.answer, (message[:1], memoryview(message)[1:]))
        elif kind == b"never":
            self.held = call
            call.on_cancel = self.cancelled.set
            self.started.release()
        elif kind == b"wrong":
            call.fail(5, "größer als 100%")
        else:
            call.answer((message,))

    def handler(self) -> Any:
        unary = ("echo", "blow", "fail", "crash", "tell", "hang")
        methods = {name: grpc.unary_unary_rpc_method_handler(getattr(self, name)) for name in unary}
        for name in ("both", "generate"):
            methods[name] = grpc.stream_stream_rpc_method_handler(getattr(self, name))
        return grpc.method_handlers_generic_handler("test.Test", methods)


class Running:
    """A server on a loop of its own."""

    def __init__(self, settings: Http2Settings, unsent: SendBufferLimit | None = None) -> None:
        self.handlers = Handlers()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.server: Http2Server = self.run(self._start(settings, unsent))
        self.port: int = self.run(self.server.listen("127.0.0.1", 0))

    async def _start(self, settings: Http2Settings, unsent: SendBufferLimit | None) -> Http2Server:
        server = Http2Server(settings, unsent=unsent)
        server.add_generic_rpc_handlers([self.handlers.handler()])
        server.add_direct_method("/test.Test/direct", self.handlers.direct)
        return server

    def run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(WAIT_S)

    def stop(self) -> None:
        self.run(self.server.stop(0.1))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(WAIT_S)


Start = Callable[..., Running]
