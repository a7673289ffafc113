"""The front for OpenAI's clients on a port of its own."""

from collections.abc import Callable
from typing import Any, Final

from app.ingress.access.guard import METRICS, Ask
from app.ingress.http1.exchange import Route
from app.ingress.metrics.front import Collect, MetricsRoute
from app.ingress.openai.exchange import RefusedRoute
from app.ingress.openai.management import ReadyRoute
from app.ingress.openai.routes import OpenAIRoutes
from app.ingress.rest.context import Found
from app.ingress.rest.front import HttpFront
from app.protocol.http.http1 import RequestHead
from app.protocol.openai.errors import answer, unknown_url

_OPEN: Final = Ask("health", open=True)


class OpenAIFront(HttpFront):
    """Serves OpenAI's API, `/health/ready` and `/metrics`.

    Args:
        routes: makes what finds the routes, by the front's policy of web origins.
        metrics: returns the metrics in Prometheus text format.
        more: as of `HttpFront`.
    """

    name = "openai"
    service = "OpenAI service connections"

    def __init__(self, routes: Callable[[Any], OpenAIRoutes], metrics: Collect, **more: Any) -> None:
        super().__init__(**more)
        self._routes = routes(self._web_origins)
        self._metrics = metrics

    def route(self, head: RequestHead) -> Route:
        """Return the route of a request."""
        found = self._routes.find(self._context, head) or self._routes.wrapped(head, self._other(head))
        return self.answered(head, found)

    def _other(self, head: RequestHead) -> Found:
        routes, context = self._routes, self._context
        if head.method == "GET" and head.path == "/health/ready":
            return routes.unless_restricted(head, "health", Found(_OPEN, ReadyRoute(context)))
        if head.method == "GET" and head.path == "/metrics":
            metrics = Found(METRICS, MetricsRoute(self._metrics, context.tasks))
            return routes.unless_restricted(head, "metrics", metrics)
        return Found(_OPEN, RefusedRoute(answer(unknown_url(head.method, head.path))))
