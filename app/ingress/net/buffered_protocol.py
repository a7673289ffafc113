"""Receiving into buffers of ours: the event loop makes a new `bytes` of all it reads for other protocols."""

import asyncio
from typing import Any, Protocol

from app.core.tensors import Buffer


class Receiver(Protocol):
    """A connection that long messages come in on."""

    def connection_lost(self, exc: Exception | None) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def data_received(self, data: Any) -> None: ...


class Buffered(asyncio.BufferedProtocol):
    """Takes a connection's place, receives into `buffer`, which connections share, and passes on a view."""

    def __init__(self, connection: Receiver, buffer: memoryview) -> None:
        self._connection = connection
        self._buffer = buffer
        self.connection_lost = connection.connection_lost  # type: ignore[method-assign]
        self.pause_writing = connection.pause_writing  # type: ignore[method-assign]
        self.resume_writing = connection.resume_writing  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        received: Buffer = self._buffer[:nbytes]
        self._connection.data_received(received)


def switch_protocol(transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
    """Have `protocol` receive from now on."""
    # A transport picks its way of reading when reading starts, hence the pause.
    transport.pause_reading()
    transport.set_protocol(protocol)
    transport.resume_reading()
