"""The HTTP server of the metrics port."""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from app.core.system.tasks import Tasks
from app.ingress.access.guard import METRICS, Guard
from app.ingress.access.http import guarded_route
from app.ingress.http1.exchange import METHOD_NOT_ALLOWED, Exchange, FixedRoute, Route
from app.ingress.http1.server import HttpServer
from app.protocol.http.http1 import RequestHead
from app.settings.fronts import Http1Settings

Collect = Callable[[], Awaitable[bytes]]

_LIMITS: Final = Http1Settings(max_body_bytes=1 << 20, max_connections=256, drain_idle_s=0)
_HEADERS: Final = b"Content-Type: text/plain; charset=utf-8\r\n"


class MetricsFront:
    """Serves `GET /metrics` on a port of its own.

    Args:
        collect: returns the metrics in Prometheus text format.
        prefixes: what gateways have before the path.
        guard: decides who may read the metrics; None if everybody may.
    """

    name = "metrics"
    service = "Metrics service connections"

    def __init__(self, collect: Collect, prefixes: tuple[str, ...] = (), guard: Guard | None = None) -> None:
        self._collect = collect
        self._guard = guard
        self._tasks = Tasks()
        self._server = HttpServer(self.route, msgspec.structs.replace(_LIMITS, path_prefixes=prefixes))

    async def start(self, address: str, port: int, reuse_port: bool = True) -> int:
        """Listen and return the port; see `HttpServer.start`."""
        return await self._server.start(address, port, reuse_port)

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._server.state.connections)

    @property
    def refusals(self) -> int:
        """Number of connections refused at `--max-connections` since the start."""
        return self._server.state.refusals

    async def stop(self, grace_s: float) -> None:
        """Close; see `HttpServer.stop`."""
        await self._server.stop(grace_s)

    def route(self, head: RequestHead) -> Route:
        """Return the route of a request; as in Triton, an unknown path answers 200 without a body."""
        if head.method != "GET":
            return METHOD_NOT_ALLOWED
        if head.path in ("/metrics", "/metrics/"):
            return guarded_route(self._guard, METRICS, head, MetricsRoute(self._collect, self._tasks))
        return FixedRoute(200, _HEADERS, b"")


class MetricsRoute:
    """Answers with the metrics, in one of `tasks`."""

    def __init__(self, collect: Collect, tasks: Tasks) -> None:
        self._collect = collect
        self._tasks = tasks

    def start(self, exchange: Exchange, body: memoryview) -> None:
        """Collect the metrics and respond."""
        self._tasks.start(self._respond(exchange))

    async def _respond(self, exchange: Exchange) -> None:
        try:
            exchange.respond(200, _HEADERS, (await self._collect(),))
        except Exception as error:
            exchange.fail(error)
