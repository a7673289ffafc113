"""The server end of channels: what a model replica holds."""

import asyncio
import logging
import os
import socket
from contextlib import suppress
from time import monotonic
from typing import Final

from app.core.files.unix_sockets import listen_unix
from app.core.system.tasks import Tasks
from app.transport.channel.handshake import check_key, greet_client
from app.transport.channel.server_connection import Handler, ServerConnection
from app.transport.channel.sockets import adopt_socket, listen_tcp, tcp_address, tune_tcp
from app.transport.memory.arena import ArenaWriter
from app.transport.protocol import ProtocolError
from app.transport.settings import TransportSettings
from app.transport.wire.frames import FAILED, Kind

logger = logging.getLogger(__name__)


_DEFAULTS: Final = TransportSettings()
_DRAIN_QUIET: Final = 5.0
"""Seconds without requests after which a drain is over although a client has not left.

One that is held up, say on a busy machine, has not read its last responses yet. It would lose them, and what
it has sent meanwhile, if the connection were closed here. One that hangs is given up then."""
_ACCEPT_RETRY: Final = 0.2


class ChannelServer:
    """Accepts channels on unix sockets and TCP, and hands their requests to a handler."""

    def __init__(self, handler: Handler, key: bytes, settings: TransportSettings = _DEFAULTS) -> None:
        """Make a server; `key` is the shared secret of the cluster.

        Raises:
            ValueError: the key is shorter than 16 bytes.
        """
        check_key(key)
        self.handler = handler
        self.connections: set[ServerConnection] = set()
        self._key = key
        self._settings = settings
        self._listeners: list[socket.socket] = []
        self._accepting, self._handshakes = Tasks(), Tasks()
        self._slots = asyncio.Semaphore(settings.max_handshakes)
        self._draining = False
        self._ready = True

    @property
    def outstanding(self) -> int:
        """Requests and control calls that have not been answered, over all clients."""
        return sum(connection.outstanding for connection in self.connections)

    def statistics(self) -> dict[str, int]:
        """Return gauges and counters summed over the open connections, for metrics."""
        totals = {"connections": len(self.connections), "outstanding": self.outstanding}
        for connection in self.connections:
            for name, value in connection.statistics().items():
                totals[name] = totals.get(name, 0) + value
        return totals

    async def listen(
        self, unix_path: str | None = None, tcp_host: str | None = None, tcp_port: int = 0
    ) -> list[str]:
        """Start to listen and return the addresses for `Channel.connect`, the unix one first.

        Raises:
            OSError: an address cannot be used; see `listen_unix` for the conditions on a path.
        """
        addresses = []
        if unix_path is not None:
            self._accept_on(listen_unix(unix_path))
            addresses.append(f"unix:{unix_path}")
        if tcp_host is not None:
            listener = listen_tcp(tcp_host, tcp_port)
            self._accept_on(listener)
            addresses.append(tcp_address(listener))
        return addresses

    def _accept_on(self, listener: socket.socket) -> None:
        self._listeners.append(listener)
        self._accepting.start(self._accept(listener))

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._slots.acquire()
            try:
                sock, _ = await loop.sock_accept(listener)
            except OSError as error:
                # Out of descriptors, or the client has gone already: neither is a reason to stop.
                self._slots.release()
                logger.warning("cannot accept a channel: %s", error)
                await asyncio.sleep(_ACCEPT_RETRY)
                continue
            except BaseException:
                self._slots.release()
                raise
            self._handshakes.start(self._handshake(sock)).add_done_callback(lambda _: self._slots.release())

    async def _handshake(self, sock: socket.socket) -> None:
        """Shake hands with a new client and open its connection."""
        arena: ArenaWriter | None = None
        try:
            async with asyncio.timeout(self._settings.handshake_timeout):
                if len(self.connections) >= self._settings.max_connections:
                    raise ConnectionError("too many connections")
                if sock.family == socket.AF_UNIX:
                    arena = ArenaWriter(self._settings.arena_bytes) if self._settings.arena_bytes else None
                else:
                    tune_tcp(sock, self._settings)
                peer = await greet_client(sock, self._key, arena)
                connection = ServerConnection(self, self._settings, arena, peer)
                if arena is not None:
                    arena.close_fd()
                await adopt_socket(sock, connection)
        except (OSError, ProtocolError, TimeoutError) as error:
            # Another server that starts looks whether somebody listens, and has left already.
            left = isinstance(error, BrokenPipeError | ConnectionResetError)
            level = logging.DEBUG if left else logging.WARNING
            logger.log(level, "refused a channel: %s", error or type(error).__name__)
            _discard(sock, arena)
        except BaseException:
            _discard(sock, arena)
            raise

    def admit(self, connection: ServerConnection) -> None:
        """As `Server.admit`."""
        self.connections.add(connection)
        self._tell_only()
        if self._draining:
            connection.send_frame(Kind.DRAIN)
        if not self._ready:
            connection.send_frame(Kind.READINESS, flags=FAILED)

    def dismiss(self, connection: ServerConnection) -> None:
        """As `Server.dismiss`."""
        self.connections.discard(connection)
        self._tell_only()

    def _tell_only(self) -> None:
        for connection in self.connections:
            connection.is_only = len(self.connections) == 1

    def announce(self, ready: bool) -> None:
        """Send all clients, also later ones, whether the model is ready; requests are accepted regardless."""
        self._ready = ready
        for connection in self.connections:
            connection.send_frame(Kind.READINESS, flags=0 if ready else FAILED)

    async def drain(self, timeout: float) -> bool:
        """Accept no new clients, ask the connected ones to send nothing new, and wait for their responses.

        Args:
            timeout: seconds to wait.

        Returns:
            Whether every request was answered; if not, `close` fails the rest.
        """
        self._draining = True
        await self._stop_listening()
        for connection in self.connections:
            connection.send_frame(Kind.DRAIN)
        deadline = monotonic() + timeout
        quiet_since = monotonic()
        while self.connections and monotonic() < deadline:
            if self.outstanding:
                quiet_since = monotonic()
            elif monotonic() - quiet_since > _DRAIN_QUIET:
                break
            await asyncio.sleep(0.01)
        return not self.outstanding

    async def close(self) -> None:
        """Close every connection; requests in flight are cancelled, and fail at their callers."""
        await self._stop_listening()
        await self._handshakes.cancel()
        for connection in list(self.connections):
            connection.close()
        deadline = monotonic() + 1.0
        while self.connections and monotonic() < deadline:
            await asyncio.sleep(0.005)
        for connection in list(self.connections):
            connection.abort(ConnectionError("server shut down"))
        while self.connections:
            await asyncio.sleep(0)

    async def _stop_listening(self) -> None:
        await self._accepting.cancel()
        for listener in self._listeners:
            if listener.family == socket.AF_UNIX:
                _unlink(listener.getsockname())
            listener.close()
        self._listeners.clear()


def _unlink(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


def _discard(sock: socket.socket, arena: ArenaWriter | None) -> None:
    sock.close()
    if arena is not None:
        arena.close()
