"""The transport side of one call over HTTP/2."""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Protocol

from app.core.tensors import Buffer

if TYPE_CHECKING:
    from app.ingress.http2_connection import Http2Connection


class Call(Protocol):
    """What a stream is for."""

    def receive(self, data: bytes, end: bool) -> None: ...

    def cancelled(self) -> None:
        """The client or the connection is gone."""


class Stream:
    """The transport side of one call. `window` is what may still be sent, `owed` what the client is owed."""

    __slots__ = (
        "_connection",
        "_drained",
        "call",
        "ended",
        "id",
        "owed",
        "queue",
        "received",
        "trailers",
        "window",
    )

    def __init__(self, connection: "Http2Connection", stream_id: int, window: int) -> None:
        self._connection = connection
        self.id = stream_id
        self.call: Call | None = None
        self.window = window
        self.received = 0
        self.owed = 0
        self.ended = False  # the client has sent everything
        self.queue: deque[memoryview] = deque()
        self.trailers: bytes | None = None
        self._drained: asyncio.Future[None] | None = None

    def send(self, kind_block: bytes, parts: tuple[Buffer, ...] = (), trailers: bytes | None = None) -> None:
        """Send a header block if there is one, a message, and the trailers that end the stream."""
        self._connection.send(self, kind_block, parts, trailers)

    async def drained(self) -> None:
        """Wait until nothing waits to be sent."""
        while self.queue:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    def wake(self) -> None:
        """Let `drained` look again."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def reset(self, code: int) -> None:
        """End the stream without a status."""
        self._connection.reset(self.id, code)

    def give_back(self, size: int) -> None:
        """Let the client send as many bytes more."""
        self._connection.give_back(self, size)
