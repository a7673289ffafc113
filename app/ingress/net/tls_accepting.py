"""Accepting the connections of a TLS port: a client that does not speak TLS is told so."""

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from app.core.system.tasks import Tasks
from app.ingress.net.misdirected import PlainAtTls
from app.ingress.net.server_state import ServerState
from app.protocol.grpc.refusal import TLS

logger = logging.getLogger(__name__)

_FIRST_BYTE_S: Final = 10.0
"""Seconds in which a client has to begin."""
_MAX_WAITING: Final = 4096
"""Sockets that have not begun at a time; more are closed."""
_TEXT: Final = "this port speaks TLS: use https://, or a gRPC channel with TLS"


class TlsAccepting:
    """Looks at the first byte of each accepted socket before it makes a connection of it.

    Args:
        state: of the server.
        make: makes the protocol of a connection.
        options: of `loop.connect_accepted_socket`: the context and its limits of time.
    """

    def __init__(
        self, state: ServerState, make: Callable[[], asyncio.Protocol], options: dict[str, Any]
    ) -> None:
        self._state = state
        self._make = make
        self._options = options
        self._waiting: dict[socket.socket, asyncio.TimerHandle] = {}
        self._connecting = Tasks()

    def protocol(self) -> asyncio.Protocol:
        """Return the protocol of an accepted socket."""
        return _Handing(self._accept)

    def _accept(self, accepted: socket.socket) -> None:
        if len(self._waiting) >= _MAX_WAITING:
            accepted.close()
            return
        loop = self._state.loop
        self._waiting[accepted] = loop.call_later(_FIRST_BYTE_S, self._drop, accepted)
        loop.add_reader(accepted, self._look, accepted)

    def _look(self, accepted: socket.socket) -> None:
        try:
            first = accepted.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            first = b""
        if not first:
            self._drop(accepted)
            return
        self._forget(accepted)
        self._connecting.start(self._connect(accepted, first == TLS))

    async def _connect(self, accepted: socket.socket, speaks_tls: bool) -> None:
        make = self._make if speaks_tls else partial(PlainAtTls, self._state, _TEXT)
        # A handshake that fails is the client's affair, as where the loop accepts.
        with contextlib.suppress(OSError, ssl.SSLError, TimeoutError):
            await self._state.loop.connect_accepted_socket(
                make, accepted, **(self._options if speaks_tls else {})
            )

    def _forget(self, accepted: socket.socket) -> None:
        self._waiting.pop(accepted).cancel()
        self._state.loop.remove_reader(accepted)

    def _drop(self, accepted: socket.socket) -> None:
        self._forget(accepted)
        accepted.close()

    async def close(self) -> None:
        """Close the sockets that are no connections yet."""
        for accepted in list(self._waiting):
            self._drop(accepted)
        await self._connecting.cancel()
        await asyncio.sleep(0)  # until transports that were just accepted are closed


class _Handing(asyncio.Protocol):
    """Hands over an accepted socket of which nothing was read.

    `loop.create_server` takes care of addresses and backlog, but gives no way to look at a socket before its
    handshake. So its transport is closed, and the connection lives on in a duplicate of the socket.
    """

    def __init__(self, accept: Callable[[socket.socket], None]) -> None:
        self._accept = accept

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        try:
            duplicate = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        except OSError as error:  # no more descriptors
            logger.error("a connection is refused: %s", error)
            return
        finally:
            transport.abort()  # type: ignore[attr-defined]  # a Transport, of uvloop by no base class
        duplicate.setblocking(False)
        self._accept(duplicate)
