"""State that a server shares with its connections."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from app.ingress.net.slow_clients import SendBufferLimit

logger = logging.getLogger(__name__)

MAX_REFUSED: Final = 256
"""Connections beyond the limit that are told so at a time; more are closed at once."""


class Connection(Protocol):
    """A connection as its server controls it."""

    def drain(self) -> None:
        """Close after the requests in flight."""

    def abort(self) -> None:
        """Close at once."""

    def check_time(self, now: float) -> None:
        """Close if a timeout has passed; called about once a second."""


class ServerState:
    """The open connections of a server and the bytes they buffer.

    Attributes:
        loop: event loop of the server, from when it listens.
        now: clock of `loop`, in seconds.
        connections: open connections.
        refused: connections beyond the limit, open for a moment until their clients are told.
        too_many: why those are refused.
        refusals: number of connections refused since the start.
        buffered: request bytes that connections buffer.
        misdirected: what clients of another protocol are told.
        send_buffers: limit on response bytes buffered for slow clients; servers may share it.
        all_closed: set when the last connection has closed.
    """

    loop: asyncio.AbstractEventLoop
    now: Callable[[], float]

    def __init__(self, max_connections: int, send_buffers: SendBufferLimit | None = None) -> None:
        self.connections: set[Connection] = set()
        self.buffered = 0
        self.misdirected = "this port speaks another protocol"
        self._warned: set[str] = set()
        self.send_buffers = send_buffers or SendBufferLimit()
        self.all_closed = asyncio.Event()
        self.refused: set[Connection] = set()
        self.refusals = 0
        self.too_many = f"too many connections: the server accepts {max_connections} (--max-connections)"
        self._max_connections = max_connections

    def warn_once(self, text: str) -> None:
        """Log what a client cannot be told, the first time that it happens."""
        if text not in self._warned:
            self._warned.add(text)
            logger.warning("%s", text)

    def admit(self, connection: Connection) -> bool:
        """Add a new connection; return False at the limit.

        The client of such a connection is then told and disconnected; if too many are, it has been aborted.
        """
        admitted = len(self.connections) < self._max_connections
        self.refusals += not admitted
        if admitted:
            self.connections.add(connection)
        elif len(self.refused) < MAX_REFUSED:
            self.refused.add(connection)
        else:
            connection.abort()
        return admitted

    def remove(self, connection: Connection) -> None:
        """Remove a connection that has closed."""
        self.refused.discard(connection)
        self.connections.discard(connection)
        if not self.connections:
            self.all_closed.set()
