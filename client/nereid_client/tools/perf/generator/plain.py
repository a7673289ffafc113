"""Connections without TLS, read and written here: an answer costs little more than its system calls."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import lru_cache
from select import EPOLLIN, EPOLLOUT, epoll
from time import monotonic
from typing import Any, Final

_READ: Final = 1 << 14
_LONG_READ: Final = 1 << 16
"""Bytes of a read once an answer has filled a short one. Each read allocates as much as it may bring."""
_ALONE_S: Final = 0.01
_PAUSE_S: Final = 0.01
"""The longest wait for an answer without the event loop. A timer nearer than the kernel's next tick (4 ms)
costs 20 us each time on a virtual machine, as much as all else that a request takes."""


class Links:
    """The plain connections of a generator, in an epoll of their own, which the event loop watches.

    Args:
        after: is called when all that was ready has been read.

    Attributes:
        alone: nothing else is urgent, as in a closed loop that has begun: while answers come, the event loop
            is left out for some milliseconds, and does not watch, for that would cost half a microsecond an
            answer.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, after: Callable[[], None]) -> None:
        self._loop, self._epoll, self._after = loop, epoll(), after
        self.alone = False
        self._links: dict[int, Link] = {}
        self._poll = self._epoll.poll
        self._watched = False
        self._watch(True)

    def _watch(self, on: bool) -> None:
        """Have the event loop watch the connections, or no longer."""
        if on and not self._watched:
            self._loop.add_reader(self._epoll.fileno(), self._wake)
        elif self._watched and not on:
            self._loop.remove_reader(self._epoll.fileno())
        self._watched = on

    def close(self) -> None:
        """Watch nothing any more."""
        if not self._epoll.closed:
            self._watch(False)
            self._epoll.close()

    async def connect(self, make: Callable[[], asyncio.Protocol], host: str, port: int) -> None:
        """Open a connection.

        Raises:
            OSError: that failed.
        """
        made = await self._connected(host, port)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = self._links[made.fileno()] = Link(self, self._loop, made, make())
        self._epoll.register(made.fileno(), EPOLLIN)
        link.protocol.connection_made(link)

    async def _connected(self, host: str, port: int) -> socket.socket:
        failure: OSError = OSError(f"{host} has no address")
        for family, address in _addresses(host, port):
            made = socket.socket(family, socket.SOCK_STREAM)
            made.setblocking(False)
            try:
                await self._loop.sock_connect(made, address)
                return made
            except BaseException as error:  # such as the end of the load
                made.close()
                if not isinstance(error, OSError):
                    raise
                failure = error
        raise failure

    def serve(self) -> None:
        """Read what is there, and let what has been read go on."""
        self._serve(self._poll(0))

    def _serve(self, ready: list[tuple[int, int]]) -> None:
        links = self._links
        for file, events in ready:
            link = links.get(file)
            if link is not None:
                link.ready(events)
        self._after()

    def _wake(self) -> None:
        if self._epoll.closed:
            return
        ready = self._poll(0)
        end = monotonic() + _ALONE_S if self.alone else 0.0
        self._watch(not self.alone)
        while ready:
            self._serve(ready)
            if monotonic() >= end:
                break
            ready = self._poll(_PAUSE_S)
        if ready and self.alone:
            self._loop.call_soon(self._wake)
        else:
            self._watch(True)

    def watch_writing(self, file: int, on: bool) -> None:
        """Wake a connection when it can be written to, or no longer."""
        self._epoll.modify(file, EPOLLIN | EPOLLOUT if on else EPOLLIN)

    def forget(self, file: int) -> None:
        """Watch a connection no longer."""
        if self._links.pop(file, None) is not None and not self._epoll.closed:
            self._epoll.unregister(file)


class Link(asyncio.Transport):
    """One connection."""

    def __init__(
        self, links: Links, loop: asyncio.AbstractEventLoop, made: socket.socket, protocol: asyncio.Protocol
    ) -> None:
        super().__init__()
        self.protocol = protocol
        self._links, self._loop, self._socket = links, loop, made
        self._file = made.fileno()
        self._recv, self._send = made.recv, made.send
        self._received = protocol.data_received
        self._most = _READ
        self._rest = bytearray()
        self._closed = False

    def ready(self, events: int) -> None:
        """Read, and write what waits."""
        if events == EPOLLIN or events & ~EPOLLOUT:
            try:
                data = self._recv(self._most)
            except BlockingIOError:
                return
            except OSError as error:
                return self._lose(error)
            if not data:
                return self._lose(None)
            if len(data) == _READ:
                self._most = _LONG_READ
            self._received(data)
        if self._rest:
            rest, self._rest = self._rest, bytearray()
            self._links.watch_writing(self._file, False)
            self.write(rest)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send data, now or when there is room."""
        if self._closed:
            return
        sent = 0
        if not self._rest:
            try:
                sent = self._send(data)
            except BlockingIOError:
                pass
            except OSError as error:
                self._loop.call_soon(self._lose, error)
                return
            if sent == len(data):
                return
            self._links.watch_writing(self._file, True)
        self._rest += memoryview(data)[sent:]

    def abort(self) -> None:
        """Close the connection at once."""
        self._loop.call_soon(self._lose, None)

    def _lose(self, error: Exception | None) -> None:
        if not self._closed:
            self._closed = True
            self._links.forget(self._file)
            self._socket.close()
            self.protocol.connection_lost(error)


@lru_cache(1)
def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, Any]]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]
