"""An HTTP/1.1 server."""

import ssl
from collections.abc import Callable
from typing import Final

from app.ingress.http1.connection import HttpConnection
from app.ingress.http1.exchange import Recogniser, Route
from app.ingress.http1.state import HttpState
from app.ingress.net.listener import Listener
from app.ingress.net.slow_clients import SendBufferLimit
from app.protocol.http.http1 import RequestHead
from app.settings.fronts import Http1Settings

_HANDSHAKE_TIMEOUT_S: Final = 10.0
_TLS_CLOSE_TIMEOUT_S: Final = 1.0


class HttpServer(Listener):
    """Listens for HTTP connections.

    Args:
        route: returns the route of a request; depends on the head alone, since equal heads share the route.
        elsewhere: what a client of HTTP/2 is told.
    """

    def __init__(
        self,
        route: Callable[[RequestHead], Route],
        settings: Http1Settings,
        send_buffers: SendBufferLimit | None = None,
        recogniser: Recogniser | None = None,
        elsewhere: str = "",
    ) -> None:
        self.state = HttpState(settings, route, send_buffers, recogniser)
        self.state.misdirected = elsewhere or "this port speaks HTTP/1.1"
        super().__init__(self.state)

    async def start(
        self, address: str, port: int, reuse_port: bool = True, tls: ssl.SSLContext | None = None
    ) -> int:
        """Listen, over TLS where there is a context for it; port 0 takes a free one. Return the port.

        Raises:
            OSError: the address cannot be bound.
        """
        return await self.open_port(
            lambda: HttpConnection(self.state),
            address,
            port,
            reuse_port,
            tls,
            ssl_handshake_timeout=_HANDSHAKE_TIMEOUT_S,
            ssl_shutdown_timeout=_TLS_CLOSE_TIMEOUT_S,
        )
