"""What a server does whatever it speaks: listen, count its connections, watch them, end them in order."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

from app.ingress.net.slow_clients import SendBufferLimit

logger = logging.getLogger(__name__)

_CHECK_INTERVAL_S: Final = 1.0
_CUT_S: Final = 1.0


class Connection(Protocol):
    """What a listener asks of its connections."""

    def drain(self) -> None:
        """Close after the requests under way."""

    def abort(self) -> None:
        """Close at once."""

    def check_time(self, now: float) -> None:
        """Look at the clock: close what is too slow, too old or dead."""


C = TypeVar("C", bound=Connection)


class Listener(Generic[C]):
    """Listening sockets and the connections that came over them.

    Attributes:
        buffered: bytes of requests that connections hold.
        unsent: answers that connections hold, those of other listeners too if it is shared with them.
    """

    loop: asyncio.AbstractEventLoop
    now: Callable[[], float]

    def __init__(self, max_connections: int, unsent: SendBufferLimit | None = None) -> None:
        self.buffered = 0
        self.unsent = unsent or SendBufferLimit()
        self._max_connections = max_connections
        self._connections: set[C] = set()
        self._servers: list[asyncio.Server] = []
        self._watch: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._connections)

    def admit(self, connection: C) -> bool:
        """Count a new connection; False when there are too many."""
        if len(self._connections) >= self._max_connections:
            return False
        self._connections.add(connection)
        return True

    def forget(self, connection: C) -> None:
        """Note that a connection has closed."""
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    async def open_port(
        self, make: Callable[[], asyncio.Protocol], address: str, port: int, **options: Any
    ) -> int:
        """Listen, with options of `loop.create_server`; returns the port.

        Raises:
            OSError: the address cannot be bound.
        """
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time
        server = await self.loop.create_server(make, address, port, backlog=1024, **options)
        self._servers.append(server)
        if self._watch is None:
            self._check_connections()
        return int(server.sockets[0].getsockname()[1])

    async def stop(self, grace_s: float) -> None:
        """Take no new connection and no new request, finish what was begun, close.

        Args:
            grace_s: seconds after which open connections are cut.
        """
        for server in self._servers:
            server.close()
        self._servers.clear()
        for connection in list(self._connections):
            connection.drain()
        await self._wait_closed(grace_s)
        if self._connections:
            logger.warning("closing %d connections after the grace period", len(self._connections))
        for connection in list(self._connections):
            connection.abort()
        await self._wait_closed(_CUT_S)
        if self._watch is not None:
            self._watch.cancel()

    async def _wait_closed(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._connections:
                    self._empty.clear()
                    await self._empty.wait()

    def _check_connections(self) -> None:
        now = self.now()
        for connection in list(self._connections):
            connection.check_time(now)
        self._watch = self.loop.call_later(_CHECK_INTERVAL_S, self._check_connections)
