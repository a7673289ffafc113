"""A gRPC server over HTTP/2 connections of our own, for the generic handlers that grpc.aio takes.

grpc.aio costs 0.4 ms of processor time a call, ten times what the rest of the request path takes; this one
a tenth of that. It has the part of grpc.aio's interface that the gRPC front uses.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from app.ingress.grpc_call import GrpcCall, refuse, refuse_restricted
from app.ingress.http2_connection import Http2Connection
from app.ingress.http2_stream import Stream
from app.protocol.grpc_http2 import CallHead
from app.protocol.restrictions import Restriction, Restrictions, category_of_method

_CHECK_INTERVAL_S: Final = 1.0


class Http2Settings(NamedTuple):
    """Limits of the server; times are seconds, sizes bytes.

    Attributes:
        max_message_size: of a request message, before and after decompression.
        max_buffered_bytes: of the request messages of all connections.
        max_streams: calls under way on one connection.
        max_calls: calls under way on all of them.
        max_connections: open connections; more are closed at once.
        max_header_size: of a call's headers.
        compress: whether responses are compressed for clients that read gzip.
        max_control_frames: frames a second, other than those of calls, that a connection may send.
        max_resets: calls a second that a client may reset.
        linger_s: how long to listen after a failure, so that the client gets to read why.
        write_timeout_s: how long a client may take nothing of what waits for it.
        keepalive_s, keepalive_timeout_s, keepalive_without_calls, min_ping_interval_s, max_ping_strikes,
        max_age_s, max_age_grace_s: as tritonserver's flags say, in seconds.
    """

    max_message_size: int = 2**31 - 1
    max_buffered_bytes: int = 8 << 30
    max_streams: int = 4096
    max_calls: int = 65536
    max_connections: int = 16384
    max_header_size: int = 64 << 10
    compress: bool = False
    max_control_frames: int = 20_000
    max_resets: int = 1000
    linger_s: float = 1.0
    write_timeout_s: float = 60.0
    keepalive_s: float = 7200.0
    keepalive_timeout_s: float = 20.0
    keepalive_without_calls: bool = False
    min_ping_interval_s: float = 300.0
    max_ping_strikes: int = 2
    max_age_s: float = 0.0
    max_age_grace_s: float = 0.0


class Http2Server:
    """Listens, and holds what connections share. `buffered` counts bytes of request messages."""

    def __init__(self, settings: Http2Settings, restrictions: Restrictions | None = None) -> None:
        self.settings = settings
        self._restrictions = restrictions or {}
        self.loop = asyncio.get_running_loop()
        self.now: Callable[[], float] = self.loop.time
        self.buffered = 0
        self.calls: set[GrpcCall] = set()
        self._handlers: list[Any] = []
        self._methods: dict[str, Any] = {}
        self._connections: set[Http2Connection] = set()
        self._servers: list[asyncio.Server] = []
        self._watch: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()

    def add_generic_rpc_handlers(self, handlers: list[Any]) -> None:
        """Serve the methods of `grpc.GenericRpcHandler`s."""
        self._handlers += handlers

    def add_registered_method_handlers(self, service: str, methods: dict[str, Any]) -> None:
        """What generated code calls beside the method above, with the same methods."""

    async def listen(
        self, address: str, port: int, reuse_port: bool = True, context: ssl.SSLContext | None = None
    ) -> int:
        """Listen; returns the port.

        Raises:
            OSError: the address cannot be bound.
        """
        server = await self.loop.create_server(
            lambda: Http2Connection(self), address, port, reuse_port=reuse_port, backlog=1024, ssl=context
        )
        self._servers.append(server)
        if self._watch is None:
            self._watch = self.loop.call_later(_CHECK_INTERVAL_S, self._check_connections)
        return int(server.sockets[0].getsockname()[1])

    async def stop(self, grace_s: float) -> None:
        """Stop listening, refuse new calls, end those under way after `grace_s` seconds at most."""
        for server in self._servers:
            server.close()
        if self._watch is not None:
            self._watch.cancel()
        for connection in list(self._connections):
            connection.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._all_closed()
        for connection in list(self._connections):
            connection.abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._all_closed()

    def open_call(self, stream: Stream, head: CallHead) -> GrpcCall | None:
        """Begin a call; None when it was refused at once."""
        handler = self._method(head.path)
        restriction = self._restrictions.get(category_of_method(head.path)) if self._restrictions else None
        if restriction is not None and not restriction.met_by(_sent(head, restriction)):
            refuse_restricted(stream, restriction)
            return None
        if head.refusal or handler is None or len(self.calls) >= self.settings.max_calls:
            refuse(stream, head, handler is None)
            return None
        return GrpcCall(self, stream, head, handler)

    def admit(self, connection: Http2Connection) -> bool:
        """Count a new connection; False when there are too many."""
        if len(self._connections) >= self.settings.max_connections:
            return False
        self._connections.add(connection)
        return True

    def forget(self, connection: Http2Connection) -> None:
        """Note that a connection has closed."""
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    def _method(self, path: str) -> Any:
        found = self._methods.get(path)
        if found is None:
            details = _Details(path)
            for handler in self._handlers:
                found = handler.service(details)
                if found is not None:
                    self._methods[path] = found
                    break
        return found

    async def _all_closed(self) -> None:
        while self._connections:
            self._empty.clear()
            await self._empty.wait()

    def _check_connections(self) -> None:
        now = self.now()
        for connection in list(self._connections):
            connection.check_time(now)
        self._watch = self.loop.call_later(_CHECK_INTERVAL_S, self._check_connections)


def _sent(head: CallHead, restriction: Restriction) -> bytes | None:
    wanted = restriction.header.lower()
    for name, value in head.metadata:
        if name == wanted:
            return value if isinstance(value, bytes) else value.encode("latin-1")
    return None


class _Details(NamedTuple):
    """What a `grpc.GenericRpcHandler` is asked with."""

    method: str
    invocation_metadata: tuple[tuple[str, str], ...] = ()
