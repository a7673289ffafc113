"""State that the connections of an HTTP/1.1 server share."""

from collections.abc import Callable
from typing import Final

from app.ingress.http1.body import RoutedHead
from app.ingress.http1.exchange import FailedRoute, Recogniser, Route
from app.ingress.net.server_state import ServerState
from app.ingress.net.slow_clients import SendBufferLimit
from app.protocol.header_cache import HeaderCache
from app.protocol.http.http1 import RequestHead
from app.settings.fronts import Http1Settings

_READ_BYTES: Final = 16 << 10
"""Size of the receive buffer beside long bodies: for a head and the part of a body that comes with it."""


class HttpState(ServerState):
    """Limits, counters and caches.

    Attributes:
        buffered: request bytes of bodies that came in more than one piece.
        heads: parsed request heads with their routes, by their bytes.
        no_heads: what connections beyond the limit have in place of them.
        recogniser: reads and answers whole requests in place of Python; None where Python does.
        read_buffer: receive buffer of connections with long bodies.
    """

    def __init__(
        self,
        settings: Http1Settings,
        route: Callable[[RequestHead], Route],
        send_buffers: SendBufferLimit | None,
        recogniser: Recogniser | None = None,
    ) -> None:
        """
        Args:
            route: returns the route of a request; depends on the head alone, since equal heads share it.
        """
        super().__init__(settings.max_connections, send_buffers)
        self.settings = settings
        self.heads = HeaderCache[RoutedHead](max_entries=4096, max_key_bytes=2048, max_bytes=4 << 20)
        self.no_heads = HeaderCache[RoutedHead](max_entries=0, max_key_bytes=0, max_bytes=0)
        self.read_buffer = memoryview(bytearray(_READ_BYTES))
        self.recogniser = recogniser
        self._route = route

    def add_head(self, data: bytes, head: RequestHead) -> RoutedHead:
        """Route a request head, without a gateway's prefix, and cache it.

        One that cannot be routed is answered with the error.
        """
        try:
            head = head.without(self.settings.path_prefixes)
            routed = RoutedHead(head, self._route(head))
        except Exception as error:
            return RoutedHead(head, FailedRoute(error))
        self.heads.put(data, routed)
        return routed
