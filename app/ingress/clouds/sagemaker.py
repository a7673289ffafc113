"""The front for SageMaker: `/ping`, `/invocations` and, for many models, `/models`.

Paths, statuses and texts are tritonserver's (src/sagemaker_server.cc), over the routes of v2: limits,
restrictions and tokens are the same.
"""

import re
from typing import Final

from app.core.errors import InferError
from app.ingress.access.guard import Ask, Guard
from app.ingress.clouds.content_type import media_type, v2_head
from app.ingress.clouds.exchange import MultiModelExchange, PlatformExchange, PlatformRoute
from app.ingress.clouds.models import ModelsRoute
from app.ingress.http1.exchange import FixedRoute, Route
from app.ingress.net.slow_clients import SendBufferLimit
from app.ingress.rest.front import HttpFront
from app.ingress.service.interface import InferenceService
from app.ingress.tracing.observer import Observer
from app.protocol.http.http1 import RequestHead
from app.protocol.http.v2 import JSON_HEADERS, encode_error
from app.protocol.status import http_status
from app.settings.clouds import CloudSettings
from app.settings.fronts import HttpSettings

_BINARY: Final = media_type("sagemaker")
_MODELS: Final = re.compile(r"/models(?:/([^/]+)(/invoke)?)?/?")
_BAD_REQUEST: Final = FixedRoute(400, b"", b"")
_ACTIONS: Final = {"GET": "", "POST": "load", "DELETE": "unload"}


class SageMakerFront(HttpFront):
    """Serves SageMaker's protocol.

    Args:
        service: answers requests.
        settings: address and limits.
        clouds: what the platform asks for.
        observer, send_buffers, guard: as of `HttpFront`.
    """

    name = "sagemaker"
    service = "SageMaker service connections"

    def __init__(
        self,
        service: InferenceService,
        settings: HttpSettings,
        clouds: CloudSettings,
        observer: Observer,
        send_buffers: SendBufferLimit,
        guard: Guard | None = None,
    ) -> None:
        super().__init__(service, settings, observer, send_buffers, guard=guard)
        self._clouds = clouds

    def route(self, head: RequestHead) -> Route:
        """Return the route of a request."""
        clouds = self._clouds
        if head.path == "/ping":
            return super().route(v2_head(head, f"/v2/health/{clouds.sagemaker_ping}", _BINARY))
        if head.path == "/invocations":
            return self._inference(head, clouds.sagemaker_model, clouds.sagemaker_type, PlatformExchange)
        match = _MODELS.fullmatch(head.path)
        if match is None or head.method not in _ACTIONS:
            return _BAD_REQUEST
        if match[2]:
            return self._inference(head, match[1], "infer", MultiModelExchange)
        if (head.method == "GET") or (head.method == "POST") != bool(match[1]):
            return self._management(head, match[1] or "")
        return _BAD_REQUEST

    def _inference(self, head: RequestHead, model: str, verb: str, exchange: type[PlatformExchange]) -> Route:
        try:
            inner = v2_head(head, f"/v2/models/{model}/{verb}", _BINARY)
        except InferError as error:
            return FixedRoute(http_status(error), JSON_HEADERS, encode_error(error.message))
        return PlatformRoute(super().route(inner), _BINARY, exchange)

    def _management(self, head: RequestHead, model: str) -> Route:
        ask = Ask("model-repository", model, action=_ACTIONS[head.method])
        route = ModelsRoute(self._context, head.method, model)
        return self.guarded(head, ask, PlatformRoute(route, _BINARY, MultiModelExchange))
