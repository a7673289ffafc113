"""The transport side of one call over HTTP/2."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from app.core.tensors import Buffer
from app.protocol.grpc import http2 as h2

if TYPE_CHECKING:
    from app.ingress.http2.output import Http2Output

STREAM_WINDOW: Final = 4 << 20
"""Bytes that a client may send before it is given some back."""


class Call(Protocol):
    """What a stream is for."""

    def receive(self, data: bytes, end: bool) -> None: ...

    def receive_run(self, pieces: Sequence[Buffer], size: int, end: bool) -> None: ...

    def cancelled(self) -> None:
        """The client or the connection is gone."""


class Stream:
    """The transport side of one call.

    Attributes:
        call: who takes what comes; None once it has sent its trailers.
        window: bytes that may still be sent.
        received: bytes of the client's that it was not given back.
        ended: the client has sent everything.
        over: nothing more may be sent: it was all sent, or the stream was reset.
        queue: what waits for a window, and behind it `trailers`.
    """

    __slots__ = (
        "_drained",
        "_output",
        "_owed",
        "call",
        "ended",
        "id",
        "over",
        "queue",
        "received",
        "trailers",
        "window",
    )

    def __init__(self, output: "Http2Output", stream_id: int, window: int) -> None:
        self._output = output
        self.id = stream_id
        self.call: Call | None = None
        self.window = window
        self.received = 0
        self._owed = 0
        self.ended = self.over = False
        self.queue: deque[memoryview] | None = None
        self.trailers: bytes | None = None
        self._drained: asyncio.Future[None] | None = None

    def send(self, block: bytes, parts: Sequence[Buffer] = (), trailers: bytes | None = None) -> None:
        """Send a header block if there is one, a message, and the trailers that end the stream."""
        self._output.send(self, block, parts, trailers)
        if trailers is not None:
            self.call = None  # it is over, and counts nothing of what the client may still send

    def answer(self, message: Sequence[Buffer], size: int) -> None:
        """Send the whole response of a call that went well: one message of `size` bytes, in pieces."""
        self._output.answer(self, message, size)

    async def drained(self) -> None:
        """Wait until nothing waits to be sent."""
        while self.queue:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    def wake(self) -> None:
        """Let `drained` look again."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def give_up(self) -> None:
        """Neither side sends any more; who waits to is woken."""
        self.over = True
        self._output.forget(self)
        call, self.call = self.call, None
        if call is not None:
            call.cancelled()
        self.wake()

    def give_back(self, size: int) -> None:
        """Let the client send as many bytes more; small amounts are saved up."""
        self._owed += size
        if self._owed >= STREAM_WINDOW // 4 and not self.ended and not self.over:
            self.received -= self._owed
            self._output.put(h2.window_update(self.id, self._owed))
            self._owed = 0
