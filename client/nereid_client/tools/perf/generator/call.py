"""A request in flight, and the interfaces between a connection and its generator."""

from __future__ import annotations

import asyncio
from time import monotonic_ns
from typing import Protocol

from nereid_client.tools.perf.generator.job import End


class Call:
    """A request in flight.

    Attributes:
        index: of its payload.
        slot: of its sequence.
        body: pieces of its answer, or the responses of its stream, where they are to be kept; else None.
        moments: of the responses of its stream; None for another call.
    """

    __slots__ = ("body", "index", "intended", "moments", "noticed", "payload", "sent", "slot")

    def __init__(self, intended: int, noticed: int) -> None:
        self.intended, self.noticed = intended, noticed
        self.sent = self.index = self.slot = 0
        self.payload: bytes | memoryview = b""
        self.body: list[bytes] | None = None
        self.moments: list[int] | None = None


class Owner(Protocol):
    """What a connection tells."""

    def opened(self, connection: Connection, seats: int) -> None:
        """Take note of a connection that can have `seats` requests in flight."""

    def finish(self, connection: Connection, call: Call, end: End = End.OK, text: str = "") -> None:
        """Take note of the end of a request; its seat is free."""

    def lost(self, connection: Connection) -> None:
        """Take note of the end of a connection, whose calls have ended before."""


class Connection(Protocol):
    """A connection of a protocol; also an `asyncio.Protocol`."""

    leaving: bool

    def send(self, call: Call) -> None:
        """Send the call's payload."""

    def expire(self, before: int) -> None:
        """End the calls that were sent before a moment."""

    def close(self) -> None:
        """Close it."""


def note_response(call: Call, response: bytes) -> None:
    """Take note of a response of a stream."""
    if call.moments is not None:
        call.moments.append(monotonic_ns())
    if call.body is not None:
        call.body.append(response)


class Wire(asyncio.Protocol):
    """What connections of both protocols share.

    Attributes:
        leaving: it takes no more calls.
    """

    def __init__(self, owner: Owner) -> None:
        self.leaving = False
        self.owner = owner
        self.transport: asyncio.Transport | None = None

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()
