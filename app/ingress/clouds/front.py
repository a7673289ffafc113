"""What the fronts for platforms share: they serve requests of v2 under other names."""

from typing import ClassVar

from app.core.errors import InferError
from app.ingress.access.guard import Guard
from app.ingress.clouds.content_type import v2_head
from app.ingress.clouds.exchange import PlatformExchange, PlatformRoute
from app.ingress.http1.exchange import FixedRoute, Route
from app.ingress.metrics.front import Collect
from app.ingress.net.slow_clients import SendBufferLimit
from app.ingress.rest.front import HttpFront
from app.ingress.service.interface import InferenceService
from app.ingress.tracing.observer import Observer
from app.protocol.http.http1 import RequestHead
from app.protocol.http.v2 import JSON_HEADERS, encode_error
from app.protocol.status import http_status
from app.settings.clouds import CloudSettings
from app.settings.fronts import HttpSettings


class PlatformFront(HttpFront):
    """Serves a platform's protocol.

    Args:
        service: answers requests.
        settings: address and limits.
        clouds: what the platform asks for.
        metrics: returns the metrics in Prometheus text format.
        observer, send_buffers, guard: as of `HttpFront`.
    """

    binary: ClassVar[str]
    """See `media_type`."""
    exchange: ClassVar[type[PlatformExchange]] = PlatformExchange
    """What gives the answers of v2 routes, unless another is asked for."""

    def __init__(
        self,
        service: InferenceService,
        settings: HttpSettings,
        clouds: CloudSettings,
        metrics: Collect,
        observer: Observer,
        send_buffers: SendBufferLimit,
        guard: Guard | None = None,
    ) -> None:
        super().__init__(service, settings, observer, send_buffers, guard=guard)
        self._clouds = clouds
        self._metrics = metrics

    def v2(
        self,
        head: RequestHead,
        path: str,
        method: str = "",
        exchange: type[PlatformExchange] | None = None,
    ) -> Route:
        """Return the route of the v2 request that a request stands for; see `v2_head`."""
        try:
            inner = v2_head(head, path, self.binary, method)
        except InferError as error:
            return FixedRoute(http_status(error), JSON_HEADERS, encode_error(error.message))
        return PlatformRoute(super().route(inner), self.binary, exchange or self.exchange)
