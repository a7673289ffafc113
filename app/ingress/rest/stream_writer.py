"""Writes responses as a stream of server-sent events.

A stream is written by a task of its own, with one write for each response. While its client does not read,
responses are buffered up to a limit; beyond it the requests are cancelled and the stream ends with an error.
"""

import asyncio
from collections import deque
from typing import Final, NamedTuple, Protocol

from app.core.errors import Failure, unavailable
from app.core.inference import Call
from app.core.tensors import InferResponse, failed
from app.ingress.http1.exchange import Exchange
from app.ingress.net.slow_clients import RESPONSE_BYTES, TOO_SLOW
from app.ingress.net.turn import Turn
from app.ingress.rest.context import RouteContext


class Event(NamedTuple):
    """What a response becomes.

    Attributes:
        data: b"" for nothing.
        last: nothing follows.
        status: of the answer, if this is its beginning.
        refusal: answers in place of a stream, if none has begun.
        cancel: the request is to end, though its final response has not come.
    """

    data: bytes
    last: bool
    status: int = 200
    refusal: Failure | None = None
    cancel: bool = False


class Encoder(Protocol):
    """Makes events of the responses to some requests."""

    headers: bytes
    """Of the answer."""

    async def event(self, index: int, response: InferResponse) -> Event:
        """Return what a response to one of the requests becomes; called for one after the other."""


class StreamWriter:
    """The sink of the requests of one exchange.

    Args:
        context: of the route.
        exchange: to answer.
        encoder: makes the events.
        count: requests.

    Attributes:
        calls: those in flight; each is appended once it was submitted.
    """

    def __init__(self, context: RouteContext, exchange: Exchange, encoder: Encoder, count: int = 1) -> None:
        self.calls: list[Call] = []
        self._context = context
        self._exchange = exchange
        self._encoder = encoder
        self._buffered: deque[tuple[int, InferResponse]] = deque()
        self._buffered_bytes = 0
        self._open = count
        self._begun = self._behind = False
        self._changed = asyncio.Event()
        self._turn = Turn()

    def cancel(self) -> None:
        """End without a further word: the client has gone."""
        self._cancel_calls()
        self._open = 0
        self._buffered.clear()
        self._buffered_bytes = 0
        self._context.send_buffers.remove(self)
        self._changed.set()

    def _cancel_calls(self) -> None:
        for call in self.calls:
            call.cancel()

    def deliver(self, index: int, response: InferResponse) -> None:
        """Receive a response to one of the requests."""
        if self._open <= 0:
            return
        if not response.final and self._is_full():
            self._cancel_calls()
            self._open, response = 1, failed(unavailable(TOO_SLOW))
        self._open -= response.final
        self._buffered.append((index, response))
        self._buffered_bytes += byte_size(response)
        self._changed.set()
        if len(self._buffered) > 1:  # the client reads slowly
            self._behind = self._context.send_buffers.update(self)

    def buffered_bytes(self) -> int:
        """Return the bytes of buffered responses."""
        return self._buffered_bytes + RESPONSE_BYTES * len(self._buffered)

    def evict(self) -> None:
        """End with an error in place of all buffered responses."""
        if self._open > 0:
            self._cancel_calls()
        self._open = 0
        self._buffered.clear()
        self._buffered.append((0, failed(unavailable(TOO_SLOW))))
        self._buffered_bytes = 0
        self._changed.set()

    def _is_full(self) -> bool:
        limits = self._context.limits
        return len(self._buffered) >= limits.stream_responses or self._buffered_bytes >= limits.stream_bytes

    async def write(self) -> None:
        """Write responses as they arrive, until the last one or until the client disconnects."""
        exchange = self._exchange
        while not exchange.closed:
            if not self._buffered:
                self._changed.clear()
                await self._changed.wait()
                continue
            index, response = self._buffered.popleft()
            self._buffered_bytes -= byte_size(response)
            if self._behind and not self._buffered:
                self._behind = False
                self._context.send_buffers.remove(self)
            self._write_one(index, await self._encoder.event(index, response))
            await exchange.drained()
            await self._turn.wrote(len(self._buffered))

    def _write_one(self, index: int, event: Event) -> None:
        exchange = self._exchange
        if event.cancel:
            self.calls[index].cancel()
        if event.last and self._open > 0:
            self.cancel()
        if event.refusal is not None and not self._begun:  # no stream begins
            exchange.fail(event.refusal)
            return
        if not self._begun and (event.data or event.last):
            exchange.begin(event.status, self._encoder.headers)
            self._begun = True
        if event.last:
            exchange.finish(event.data)
        else:
            exchange.send(event.data)


def byte_size(response: InferResponse) -> int:
    """Return the bytes of a response's tensors."""
    return sum([len(tensor.data) for tensor in response.outputs])


EVENT_STREAM: Final = b"Content-Type: text/event-stream; charset=utf-8\r\n"
