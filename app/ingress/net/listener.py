"""Listening sockets: accept connections, check their timeouts, close them in order."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from typing import Final

from app.ingress.net.server_state import Connection, ServerState
from app.ingress.net.tls_accepting import TlsAccepting

logger = logging.getLogger(__name__)

_CHECK_INTERVAL_S: Final = 1.0
_CHECKED: Final = 256
"""Connections that are checked in a turn of the loop: 0.2 ms."""
_ABORT_S: Final = 1.0


class Listener:
    """Accepts the connections of one server."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._servers: list[asyncio.Server] = []
        self._check: asyncio.TimerHandle | None = None
        self._accepting: list[TlsAccepting] = []

    async def open_port(
        self,
        make: Callable[[], asyncio.Protocol],
        address: str,
        port: int,
        reuse_port: bool,
        tls: ssl.SSLContext | None = None,
        **limits: float,
    ) -> int:
        """Listen, over TLS with limits of `connect_accepted_socket` if there is a context; return the port.

        Raises:
            OSError: the address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        self._state.loop, self._state.now = loop, loop.time
        if tls:
            self._accepting.append(TlsAccepting(self._state, make, {"ssl": tls, **limits}))
            make = self._accepting[-1].protocol
        server = await loop.create_server(make, address, port, backlog=1024, reuse_port=reuse_port)
        self._servers.append(server)
        if self._check is None:
            self._check_connections()
        return int(server.sockets[0].getsockname()[1])

    async def stop(self, grace_s: float) -> None:
        """Accept no new connection or request, finish those in flight, close.

        Args:
            grace_s: seconds after which open connections are aborted.
        """
        for server in self._servers:
            server.close()
        self._servers.clear()
        for accepting in self._accepting:
            await accepting.close()
        for connection in list(self._state.connections):
            connection.drain()
        await self._wait_closed(grace_s)
        if self._state.connections:
            logger.warning("closing %d connections after the grace period", len(self._state.connections))
        for connection in (*self._state.connections, *self._state.refused):
            connection.abort()
        await self._wait_closed(_ABORT_S)
        if self._check is not None:
            self._check.cancel()

    async def _wait_closed(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._state.connections:
                    self._state.all_closed.clear()
                    await self._state.all_closed.wait()

    def _check_connections(self) -> None:
        self._check_some(list(self._state.connections))

    def _check_some(self, connections: list[Connection]) -> None:
        """Check the first of some connections, and the others in the loop's next turns."""
        now, loop = self._state.now(), self._state.loop
        for connection in connections[:_CHECKED]:
            if connection in self._state.connections:
                connection.check_time(now)
        if rest := connections[_CHECKED:]:
            self._check = loop.call_later(0, self._check_some, rest)
        else:
            self._check = loop.call_later(_CHECK_INTERVAL_S, self._check_connections)
