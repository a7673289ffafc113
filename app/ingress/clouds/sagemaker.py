"""The front for SageMaker: `/ping`, `/invocations` and, for many models, `/models`.

Paths, statuses and texts are tritonserver's (src/sagemaker_server.cc), over the routes of v2: limits,
restrictions and tokens are the same.
"""

import re
from typing import Final

from app.ingress.access.guard import Ask
from app.ingress.clouds.content_type import media_type
from app.ingress.clouds.exchange import MultiModelExchange, PlatformExchange, PlatformRoute
from app.ingress.clouds.front import PlatformFront
from app.ingress.clouds.models import ModelsRoute
from app.ingress.http1.exchange import FixedRoute, Route
from app.protocol.http.http1 import RequestHead

_MODELS: Final = re.compile(r"/models(?:/([^/]+)(/invoke)?)?/?")
_BAD_REQUEST: Final = FixedRoute(400, b"", b"")
_ACTIONS: Final = {"GET": "", "POST": "load", "DELETE": "unload"}


class SageMakerFront(PlatformFront):
    """Serves SageMaker's protocol."""

    name = "sagemaker"
    service = "SageMaker service connections"
    binary = media_type("sagemaker")

    def route(self, head: RequestHead) -> Route:
        clouds = self._clouds
        if head.path == "/ping":
            # As tritonserver, whatever its content type is.
            return super().route(head._replace(path=f"/v2/health/{clouds.sagemaker_ping}"))
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
        return self.v2(head, f"/v2/models/{model}/{verb}", exchange=exchange)

    def _management(self, head: RequestHead, model: str) -> Route:
        ask = Ask("model-repository", model, action=_ACTIONS[head.method])
        route = ModelsRoute(self._context, head.method, model)
        return self.guarded(head, ask, PlatformRoute(route, self.binary, MultiModelExchange))
