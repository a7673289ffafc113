"""A client that has ended its side of a connection while its request is answered.

It may read on, as `nc -N` does, or be gone: the same FIN says either. An interim response, which HTTP/1.1 has
every client expect, or a comment in a stream of events tells them apart: the system of a client that is gone
resets the connection.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Final

_FIRST_PAUSE_S: Final = 0.05
"""Answers that take less come without an interim response before them."""
_LONGEST_PAUSE_S: Final = 5.0
_REPLY_S: Final = 0.02
"""For the reset by a client that is gone; one that takes longer is seen after the next pause."""
_PATIENCE: Final = 5
"""Pauses, 1.5 s, after which a client that cannot be asked, of HTTP/1.0, is taken to be gone."""
_CLOSED: Final = 7
"""TCP_CLOSE, the first byte of the kernel's `tcp_info`."""


class HalfClosed:
    """Looks whether the client is still there until the transport closes, and aborts it when it is not.

    Args:
        loop: the connection's event loop.
        transport: its transport.
        question: returns what may be sent now and says nothing; b"" for nothing.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        question: Callable[[], bytes],
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._question = question
        self._pause_s = _FIRST_PAUSE_S
        self._without_question = 0
        loop.call_later(self._pause_s, self._ask)

    def _ask(self) -> None:
        if self._ends():
            return
        question = self._question()
        self._without_question = 0 if question else self._without_question + 1
        if question:
            self._transport.write(question)
        self._loop.call_later(_REPLY_S, self._pause)

    def _pause(self) -> None:
        if not self._ends():
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            self._loop.call_later(self._pause_s, self._ask)

    def _ends(self) -> bool:
        if self._transport.is_closing():
            return True
        gone = self._without_question >= _PATIENCE or _was_reset(self._transport)
        if gone:
            self._transport.abort()
        return gone


def _was_reset(transport: asyncio.Transport) -> bool:
    # The loop does not look itself: it reads no more.
    with socket.socket(fileno=transport.get_extra_info("socket").dup().detach()) as sock:
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _CLOSED
