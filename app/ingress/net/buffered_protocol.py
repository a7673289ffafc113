"""Receiving into preallocated buffers, where a plain protocol gets a new `bytes` object for every read.

libuv reads from a connection again, up to 32 times, as long as a read fills its buffer. So that others have
their turn, a connection that has filled its buffer is read on in the loop's next turn.
"""

import asyncio
from typing import Any, Final, Protocol

from app.core.tensors import Buffer

MOST_READ: Final = 128 << 10
"""Bytes of a read: 40 us of a processor, as two small requests take; half of it slows lone clients down."""


class Receiver(Protocol):
    """A connection that receives long messages."""

    def connection_lost(self, exc: Exception | None) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def data_received(self, data: Any) -> None: ...


class SharedBufferProtocol(asyncio.BufferedProtocol):
    """Receives into `buffer`, which connections share, and passes views of it to a connection.

    Attributes:
        transport: of the connection, from `switch_protocol` on.
    """

    transport: asyncio.Transport | None = None

    def __init__(self, connection: Receiver, buffer: memoryview) -> None:
        self._connection = connection
        self._buffer = buffer
        self._blocked = False
        self.connection_lost = connection.connection_lost  # type: ignore[method-assign]

    def pause_writing(self) -> None:
        self._blocked = True
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._blocked = False
        self._connection.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        received: Buffer = self._buffer[:nbytes]
        self._connection.data_received(received)
        if nbytes == len(self._buffer):
            self.give_way()

    def give_way(self) -> None:
        """Read on in the next turn of the loop, unless the connection reads nothing anyway."""
        if self.transport is not None and self.transport.is_reading():
            self.transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._read_on, self.transport)

    def _read_on(self, transport: asyncio.Transport) -> None:
        if not self._blocked:  # a connection whose client reads nothing is read no further
            transport.resume_reading()


def switch_protocol(transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
    """Let another protocol receive the data of a transport."""
    if isinstance(protocol, SharedBufferProtocol):
        protocol.transport = transport
    # A transport chooses how to read when reading starts, hence the pause.
    transport.pause_reading()
    transport.set_protocol(protocol)
    transport.resume_reading()
