"""The listening side of an HTTP front: sockets, limits, and an orderly end."""

import asyncio
import contextlib
import logging
import ssl
from typing import Final, NamedTuple, Protocol

from app.ingress.http_connection import HttpConnection
from app.ingress.http_exchange import Route
from app.ingress.http_receiving import RoutedHead
from app.protocol.header_cache import HeaderCache
from app.protocol.http1 import RequestHead

logger = logging.getLogger(__name__)

_CHECK_INTERVAL_S: Final = 1.0
_HANDSHAKE_TIMEOUT_S: Final = 10.0
_TLS_CLOSE_TIMEOUT_S: Final = 1.0


class HttpSettings(NamedTuple):
    """Limits of an HTTP front. Sizes are bytes.

    Attributes:
        max_body_bytes: a request body; the tensors in it are otherwise not limited.
        max_buffered_bytes: request bodies of all connections that came in more than one piece.
        max_head_bytes: a request line with its headers.
        max_connections: open connections; more are closed at once.
        read_timeout_s: how long a request may be on its way, a long one more by its bytes; 0: any time.
        idle_timeout_s: how long a connection may stay open between requests; 0: any time.
        write_timeout_s: how long a client may take none of a response that waits for it.
        write_buffer_bytes: response bytes that may wait in a connection before its reading stops.
        linger_s: how long to listen after a refusal, so that the client gets to read it.
        stream_responses: responses of a stream that may wait behind the write buffer; more cancel it.
        stream_bytes: tensor bytes of those responses; more cancel it.
    """

    max_body_bytes: int = (1 << 31) - 1
    max_buffered_bytes: int = 8 << 30
    max_head_bytes: int = 64 << 10
    max_connections: int = 16384
    read_timeout_s: float = 60.0
    idle_timeout_s: float = 300.0
    write_timeout_s: float = 60.0
    write_buffer_bytes: int = 1 << 20
    linger_s: float = 1.0
    stream_responses: int = 65536
    stream_bytes: int = 256 << 20


class HttpApp(Protocol):
    """Decides what becomes of requests."""

    def route(self, head: RequestHead) -> Route:
        """Return the route of a request; depends on the head alone, since equal heads share the answer."""


class HttpServer:
    """Listens, and holds what connections share.

    `buffered` counts request bytes of bodies that came in more than one piece.
    """

    def __init__(self, app: HttpApp, settings: HttpSettings) -> None:
        self.app = app
        self.settings = settings
        self.heads = HeaderCache[RoutedHead](max_entries=4096, max_key_bytes=2048, max_bytes=4 << 20)
        self.buffered = 0
        self.loop: asyncio.AbstractEventLoop
        self._connections: set[HttpConnection] = set()
        self._server: asyncio.Server | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._empty: asyncio.Event

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._connections)

    async def start(
        self, address: str, port: int, reuse_port: bool = True, tls: ssl.SSLContext | None = None
    ) -> int:
        """Listen, over TLS where there is a context for it; port 0 takes a free one. Returns the port.

        Raises:
            OSError: the address cannot be bound.
        """
        self.loop = asyncio.get_running_loop()
        self._empty = asyncio.Event()
        self.now = self.loop.time
        self._server = await self.loop.create_server(
            lambda: HttpConnection(self),
            address,
            port,
            reuse_port=reuse_port,
            backlog=1024,
            ssl=tls,
            ssl_handshake_timeout=_HANDSHAKE_TIMEOUT_S if tls else None,
            ssl_shutdown_timeout=_TLS_CLOSE_TIMEOUT_S if tls else None,
        )
        self._check_connections()
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self, grace_s: float) -> None:
        """Take no new connection, finish what was begun, close.

        Args:
            grace_s: seconds after which open connections are cut.
        """
        if self._server is None:
            return
        self._server.close()
        for connection in list(self._connections):
            connection.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._all_closed()
        await self._cut()
        if self._watch is not None:
            self._watch.cancel()
        self._server = None

    async def _all_closed(self) -> None:
        while self._connections:
            self._empty.clear()
            await self._empty.wait()

    async def _cut(self) -> None:
        if self._connections:
            logger.warning("closing %d connections after the grace period", len(self._connections))
        for connection in list(self._connections):
            connection.abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._all_closed()

    def _check_connections(self) -> None:
        now = self.now()
        for connection in list(self._connections):
            connection.check_time(now)
        self._watch = self.loop.call_later(_CHECK_INTERVAL_S, self._check_connections)

    def admit(self, connection: HttpConnection) -> bool:
        """Count a new connection; False when there are too many."""
        if len(self._connections) >= self.settings.max_connections:
            return False
        self._connections.add(connection)
        return True

    def forget(self, connection: HttpConnection) -> None:
        """Note that a connection has closed."""
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()
