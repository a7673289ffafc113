"""The listening side of an HTTP front: its limits, and what its connections share."""

import ssl
from typing import Final, NamedTuple, Protocol

from app.ingress.http1.body import RoutedHead
from app.ingress.http1.connection import HttpConnection
from app.ingress.http1.exchange import Route
from app.ingress.net.listener import Listener
from app.ingress.net.slow_clients import SendBufferLimit
from app.protocol.header_cache import HeaderCache
from app.protocol.http.http1 import RequestHead

_HANDSHAKE_TIMEOUT_S: Final = 10.0
_TLS_CLOSE_TIMEOUT_S: Final = 1.0
_READ_BYTES: Final = 16 << 10
"""What connections with long bodies read at once of all else: a head, and what of a body comes with it."""


class HttpSettings(NamedTuple):
    """Limits of an HTTP front. Sizes are bytes.

    Attributes:
        max_body_bytes: a request body; the tensors in it are otherwise not limited.
        max_buffered_bytes: request bodies of all connections that came in more than one piece.
        max_head_bytes: a request line with its headers.
        max_connections: open connections; more are closed at once.
        read_timeout_s: how long a request may be on its way, a long one more by its bytes; 0: any time.
        idle_timeout_s: how long a connection may stay open between requests; 0: any time.
        write_timeout_s: how long a client may take none of a response that waits for it.
        write_buffer_bytes: response bytes that may wait in a connection before its reading stops.
        linger_s: how long to listen after a refusal, so that the client gets to read it.
        stream_responses: responses of a stream that may wait behind the write buffer; more cancel it.
        stream_bytes: tensor bytes of those responses; more cancel it.
    """

    max_body_bytes: int = (1 << 31) - 1
    max_buffered_bytes: int = 8 << 30
    max_head_bytes: int = 64 << 10
    max_connections: int = 16384
    read_timeout_s: float = 60.0
    idle_timeout_s: float = 300.0
    write_timeout_s: float = 60.0
    write_buffer_bytes: int = 1 << 20
    linger_s: float = 1.0
    stream_responses: int = 65536
    stream_bytes: int = 256 << 20


class HttpApp(Protocol):
    """Decides what becomes of requests."""

    def route(self, head: RequestHead) -> Route:
        """Return the route of a request; depends on the head alone, since equal heads share the answer."""


class HttpServer(Listener[HttpConnection]):
    """Holds what connections share.

    `buffered` counts request bytes of bodies that came in more than one piece.
    """

    def __init__(self, app: HttpApp, settings: HttpSettings, unsent: SendBufferLimit | None = None) -> None:
        super().__init__(settings.max_connections, unsent)
        self.app = app
        self.settings = settings
        self.heads = HeaderCache[RoutedHead](max_entries=4096, max_key_bytes=2048, max_bytes=4 << 20)
        self.read_buffer = memoryview(bytearray(_READ_BYTES))

    async def start(
        self, address: str, port: int, reuse_port: bool = True, tls: ssl.SSLContext | None = None
    ) -> int:
        """Listen, over TLS where there is a context for it; port 0 takes a free one. Returns the port.

        Raises:
            OSError: the address cannot be bound.
        """
        return await self.open_port(
            lambda: HttpConnection(self),
            address,
            port,
            reuse_port=reuse_port,
            ssl=tls,
            ssl_handshake_timeout=_HANDSHAKE_TIMEOUT_S if tls else None,
            ssl_shutdown_timeout=_TLS_CLOSE_TIMEOUT_S if tls else None,
        )
