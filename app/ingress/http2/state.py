"""State that the connections and calls of an HTTP/2 server share."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from app.core.tensors import Buffer
from app.ingress.net.server_state import ServerState
from app.ingress.net.slow_clients import SendBufferLimit
from app.protocol.grpc import http2 as h2
from app.protocol.grpc.framing import CallHead, Compressed, read_head
from app.protocol.grpc.header_blocks import HeaderReader, ReadsBlocks
from app.protocol.grpc.refusal import TLS, NotHttp2
from app.settings.fronts import Http2Settings

if TYPE_CHECKING:
    from app.native.extension import UnaryCalls

_USUAL_RATIO: Final = 10
"""Compression up to which `max_decompressed_size` does not limit a message: no bomb."""
_READ_BYTES: Final = 256 << 10
"""Size of the receive buffer of connections with long messages."""


class Http2State(ServerState):
    """Limits, counters and the thread that decompresses.

    Attributes:
        buffered: bytes of request messages.
        calls: calls in flight.
        read_buffer: receive buffer of connections with long messages.
        compiled: receives and answers most unary calls; None where Python does all.
    """

    def __init__(self, settings: Http2Settings, send_buffers: SendBufferLimit | None) -> None:
        super().__init__(settings.max_connections, send_buffers)
        self.settings = settings
        self.compresses = settings.compression != "none"
        self.calls = 0
        self.compiled: UnaryCalls | None = None
        self.read_buffer = memoryview(bytearray(_READ_BYTES))
        # One thread: decompressing several messages of gigabytes at a time would exceed every memory limit.
        self._decompressing = ThreadPoolExecutor(1, "decompressing")

    def header_reader(self) -> ReadsBlocks[CallHead]:
        """Make what decodes the header blocks of a connection."""
        if self.compiled is not None:
            return self.compiled.header_decoder()
        return HeaderReader(read_head, self.settings.max_header_size)

    def misdirection(self, data: Buffer) -> NotHttp2:
        """Return the error for a connection that begins with `data`, which is not HTTP/2."""
        if data[:1] == TLS:
            self.warn_once("a client speaks TLS to the gRPC port, which does not: see --grpc-use-ssl")
        return NotHttp2(h2.PROTOCOL_ERROR, self.misdirected)

    def decompress(self, message: Compressed) -> "asyncio.Future[bytes]":
        """Decompress a message, off the loop; raises as `Compressed.decompress`."""
        settings = self.settings
        limit = max(settings.max_decompressed_size, _USUAL_RATIO * len(message.data))
        limit = min(limit, settings.max_message_size)
        return self.loop.run_in_executor(self._decompressing, message.decompress, limit)

    def close(self) -> None:
        """Stop decompressing."""
        self._decompressing.shutdown(wait=False, cancel_futures=True)
