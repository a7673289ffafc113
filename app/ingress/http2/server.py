"""A gRPC server over HTTP/2.

grpc.aio needs 0.4 ms of processor time for a call, ten times the rest of the request path; this server needs
a tenth of that.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from app.ingress.http2.call import GrpcCall, refuse, refuse_restricted
from app.ingress.http2.connection import Http2Connection
from app.ingress.http2.stream import Stream
from app.ingress.net.listener import Listener
from app.ingress.net.slow_clients import SendBufferLimit
from app.protocol.grpc.framing import CallHead, Compressed
from app.protocol.restrictions import Restriction

_READ_BYTES: Final = 256 << 10
"""What connections with long messages read at once."""


class Http2Settings(NamedTuple):
    """Limits of the server; times are seconds, sizes bytes.

    Attributes:
        max_message_size: of a request message, before and after decompression.
        max_buffered_bytes: of the request messages of all connections.
        max_streams: calls under way on one connection.
        max_calls: calls under way on all of them.
        max_connections: open connections; more are closed at once.
        max_header_size: of a call's headers.
        compress: whether responses are compressed for clients that read gzip.
        max_control_frames: frames a second, other than those of calls, that a connection may send.
        max_resets: calls a second that a client may reset.
        linger_s: how long to listen after a failure, so that the client gets to read why.
        write_timeout_s: how long a client may take nothing of what waits for it.
        keepalive_s, keepalive_timeout_s, keepalive_without_calls, min_ping_interval_s, max_ping_strikes,
        max_age_s, max_age_grace_s: as tritonserver's flags say, in seconds.
    """

    max_message_size: int = 2**31 - 1
    max_buffered_bytes: int = 8 << 30
    max_streams: int = 4096
    max_calls: int = 65536
    max_connections: int = 16384
    max_header_size: int = 64 << 10
    compress: bool = False
    max_control_frames: int = 20_000
    max_resets: int = 1000
    linger_s: float = 1.0
    write_timeout_s: float = 60.0
    keepalive_s: float = 7200.0
    keepalive_timeout_s: float = 20.0
    keepalive_without_calls: bool = False
    min_ping_interval_s: float = 300.0
    max_ping_strikes: int = 2
    max_age_s: float = 0.0
    max_age_grace_s: float = 0.0


OpenCall = Callable[["Http2Server", Stream, CallHead], GrpcCall]
"""Opens a call of one gRPC method: `UnaryCall` or `StreamingCall` with its handler."""


class Http2Server(Listener[Http2Connection]):
    """Serves gRPC methods. `buffered` counts bytes of request messages.

    Args:
        methods: by path, `/package.Service/Method`.
        restricted: metadata required by methods, by path.
        unsent: limit on response bytes buffered for slow clients.
    """

    def __init__(
        self,
        settings: Http2Settings,
        methods: Mapping[str, OpenCall],
        restricted: Mapping[str, Restriction] | None = None,
        unsent: SendBufferLimit | None = None,
    ) -> None:
        super().__init__(settings.max_connections, unsent)
        self.settings = settings
        self._methods = methods
        self._restricted = restricted or {}
        self.calls: set[GrpcCall] = set()
        self.read_buffer = memoryview(bytearray(_READ_BYTES))
        # One thread: decompressing several messages of gigabytes at a time would exceed every memory limit.
        self._decompressing = ThreadPoolExecutor(1, "decompressing")

    def decompress(self, message: Compressed) -> "asyncio.Future[bytes]":
        """Decompress a message, off the loop; ValueError for one that cannot be, or becomes too large."""
        limit = self.settings.max_message_size
        return self.loop.run_in_executor(self._decompressing, message.decompress, limit)

    async def stop(self, grace_s: float) -> None:
        await super().stop(grace_s)
        self._decompressing.shutdown(wait=False, cancel_futures=True)

    async def listen(
        self, address: str, port: int, reuse_port: bool = True, context: ssl.SSLContext | None = None
    ) -> int:
        """Listen; returns the port.

        Raises:
            OSError: the address cannot be bound.
        """
        return await self.open_port(
            lambda: Http2Connection(self), address, port, reuse_port=reuse_port, ssl=context
        )

    def open_call(self, stream: Stream, head: CallHead) -> GrpcCall | None:
        """Open a call; None when it was refused."""
        method = self._methods.get(head.path)
        restriction = self._restricted.get(head.path)
        if restriction is not None and not restriction.met_by(_sent(head, restriction)):
            refuse_restricted(stream, restriction)
            return None
        if method is None or head.refusal or len(self.calls) >= self.settings.max_calls:
            refuse(stream, head, unknown=method is None)
            return None
        return method(self, stream, head)


def _sent(head: CallHead, restriction: Restriction) -> bytes | None:
    wanted = restriction.header.lower()
    for name, value in head.metadata:
        if name == wanted:
            return value if isinstance(value, bytes) else value.encode("latin-1")
    return None
