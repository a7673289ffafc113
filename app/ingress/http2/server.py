"""A gRPC server over HTTP/2.

grpc.aio needs 0.4 ms of processor time for a call, ten times the rest of the request path; this server needs
a tenth of that.
"""

import ssl
from collections.abc import Mapping
from functools import partial

from app.ingress.http2.call import OpenCall, open_call
from app.ingress.http2.compiled import compiled_calls
from app.ingress.http2.connection import Http2Connection
from app.ingress.http2.state import Http2State
from app.ingress.net.listener import Listener
from app.ingress.net.slow_clients import SendBufferLimit
from app.protocol.restrictions import Restriction
from app.settings.fronts import Http2Settings


class Http2Server(Listener):
    """Serves gRPC methods.

    Args:
        methods: by path, `/package.Service/Method`.
        restricted: metadata required by methods, by path.
        send_buffers: limit on response bytes buffered for slow clients.
        data_plane: one of `app.native.choice.CHOICES`.
        elsewhere: what a client of HTTP/1.1 is told.
    """

    def __init__(
        self,
        settings: Http2Settings,
        methods: Mapping[str, OpenCall],
        restricted: Mapping[str, Restriction] | None = None,
        send_buffers: SendBufferLimit | None = None,
        data_plane: str = "auto",
        elsewhere: str = "",
    ) -> None:
        self.state = Http2State(settings, send_buffers)
        self.state.misdirected = elsewhere or "this port speaks gRPC"
        self.state.compiled = compiled_calls(data_plane, self.state, methods, restricted or {})
        super().__init__(self.state)
        self.open_call = partial(open_call, self.state, methods, restricted or {})

    async def listen(
        self, address: str, port: int, reuse_port: bool = True, context: ssl.SSLContext | None = None
    ) -> int:
        """Listen; return the port.

        Raises:
            OSError: the address cannot be bound.
        """
        return await self.open_port(
            lambda: Http2Connection(self.state, self.open_call),
            address,
            port,
            reuse_port,
            context,
        )

    async def stop(self, grace_s: float) -> None:
        await super().stop(grace_s)
        self.state.close()
