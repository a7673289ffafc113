"""The front for Vertex AI: health and predictions, and v2 requests that a header asks for.

Statuses and texts are tritonserver's (src/vertex_ai_server.cc), over the routes of v2: limits, restrictions
and tokens are the same.
"""

import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from app.core.errors import invalid_arg
from app.ingress.access.guard import METRICS
from app.ingress.clouds.content_type import media_type
from app.ingress.clouds.exchange import PlainExchange
from app.ingress.clouds.front import PlatformFront
from app.ingress.http1.exchange import METHOD_NOT_ALLOWED, Exchange, FixedRoute, Route
from app.ingress.metrics.front import MetricsRoute
from app.protocol.http.http1 import RequestHead

_REDIRECT: Final = b"x-vertex-ai-triton-redirect"
_MODEL: Final = r"v2/models/[^/]+(?:/versions/[0-9]+)?"
_SHARED_MEMORY: Final = r"v2/(?:system|cuda)sharedmemory(?:/region/[^/]+)?"
_POSTED: Final = re.compile(rf"{_MODEL}/infer|v2/repository(?:/[^/]+)?/index")
_READ: Final = re.compile(
    rf"v2|v2/health/(?:live|ready)|v2/models/stats|{_MODEL}(?:/(?:ready|config|stats))?"
    rf"|{_SHARED_MEMORY}/status"
)
_FORBIDDEN: Final = re.compile(
    rf"{_SHARED_MEMORY}/(?:register|unregister)|v2/repository(?:/[^/]+)?/models/[^/]+/(?:load|unload)"
)


class VertexAiFront(PlatformFront):
    """Serves Vertex AI's protocol."""

    name = "vertex-ai"
    service = "Vertex AI service connections"
    binary = media_type("vertex-ai")
    exchange = PlainExchange
    _model = ""
    """The model of predictions, once it is known to be there."""

    def route(self, head: RequestHead) -> Route:
        if head.path == self._clouds.vertex_ai_health:
            return _FoundRoute(self, partial(self.find_health, head))
        if head.path != self._clouds.vertex_ai_predict:
            return FixedRoute(400, b"", b"")
        redirect = head.get(_REDIRECT)
        if redirect is not None:
            return self._redirected(head, redirect)
        if self._clouds.vertex_ai_default_model:
            return self.inference(head, self._clouds.vertex_ai_default_model)
        return _FoundRoute(self, partial(self.find_inference, head))

    def inference(self, head: RequestHead, model: str) -> Route:
        """Return the route of a prediction by a model."""
        return self.v2(head, f"/v2/models/{model}/infer")

    def run(self, exchange: Exchange, body: memoryview, find: Callable[[], Awaitable[Route]]) -> None:
        """Answer by a route that is found first."""
        self._context.tasks.start(_answer(exchange, body, find))

    async def find_health(self, head: RequestHead) -> Route:
        """Return the route of a health check.

        Raises:
            InferError: INVALID_ARG, the server has started without the model of predictions.
        """
        if not self._model and self._context.service.ready():  # not before: the models may be loading
            await self._find_model()
        return super().route(head._replace(path="/v2/health/ready"))

    async def find_inference(self, head: RequestHead) -> Route:
        """Return the route of a prediction by the only model.

        Raises:
            InferError: INVALID_ARG unless exactly one is ready.
        """
        return self.inference(head, self._model or await self._find_model())

    async def _find_model(self) -> str:
        index = await self._context.service.repository_index(ready=True)
        try:
            model = self._clouds.vertex_ai_model({model.name for model in index.models})
        except ValueError as error:
            raise invalid_arg(str(error)) from error
        if self._context.service.ready():
            self._model = model
        return model

    def _redirected(self, head: RequestHead, target: str) -> Route:
        if head.method != "POST":
            return METHOD_NOT_ALLOWED
        if target == "metrics":
            return self.guarded(head, METRICS, MetricsRoute(self._metrics, self._context.tasks))
        if _FORBIDDEN.fullmatch(target):
            return FixedRoute(403, b"", b"")
        if _POSTED.fullmatch(target):
            return self.v2(head, f"/{target}", "POST")
        return self.v2(head, f"/{target}", "GET") if _READ.fullmatch(target) else FixedRoute(400, b"", b"")


async def _answer(exchange: Exchange, body: memoryview, find: Callable[[], Awaitable[Route]]) -> None:
    try:
        route = await find()
        if not exchange.closed:
            route.start(exchange, body)
    except Exception as error:
        exchange.fail(error)


class _FoundRoute:
    def __init__(self, front: VertexAiFront, find: Callable[[], Awaitable[Route]]) -> None:
        self._front = front
        self._find = find

    def start(self, exchange: Exchange, body: memoryview) -> None:
        """Find the route, then answer by it."""
        self._front.run(exchange, body, self._find)
