"""Receiving into preallocated buffers, where a plain protocol gets a new `bytes` object for every read."""

import asyncio
from typing import Any, Protocol

from app.core.tensors import Buffer


class Receiver(Protocol):
    """A connection that receives long messages."""

    def connection_lost(self, exc: Exception | None) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def data_received(self, data: Any) -> None: ...


class SharedBufferProtocol(asyncio.BufferedProtocol):
    """Receives into `buffer`, which connections share, and passes views of it to a connection."""

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
    """Let another protocol receive the data of a transport."""
    # A transport chooses how to read when reading starts, hence the pause.
    transport.pause_reading()
    transport.set_protocol(protocol)
    transport.resume_reading()
