"""The routes of OpenAI's API, on the port of HTTP or on one of their own."""

import re
from collections.abc import Callable
from functools import partial
from typing import Final
from urllib.parse import unquote

from app.core.observability.generation import GenerationFigures
from app.ingress.access.guard import Ask
from app.ingress.http1.exchange import Route
from app.ingress.openai.catalog import Catalog
from app.ingress.openai.exchange import OpenAIRoute, PreflightRoute, RefusedRoute
from app.ingress.openai.job import CHATS, COMPLETIONS, RESPONSES
from app.ingress.openai.management import LoadRoute, ModelsRoute, Turns
from app.ingress.openai.texts import TextRoute
from app.ingress.openai.vectors import EmbeddingsRoute, RerankRoute
from app.ingress.rest.context import Found, RouteContext
from app.protocol.http.http1 import RequestHead
from app.protocol.http.web_origin import WebOriginPolicy
from app.protocol.openai.errors import (
    answer,
    invalid,
    not_kept,
    restricted,
    unknown_url,
    wrong_method,
)
from app.settings.openai import OpenAISettings
from app.settings.settings import ServerSettings

_MODEL: Final = re.compile(r"/v1/models(?:/([^/]+)(?:/(load|unload))?)?/?")
_OPEN: Final = Ask("health", open=True)

MakeRoute = Callable[[RouteContext, Catalog, OpenAISettings, RequestHead], Route]
INFERENCES: Final[dict[str, MakeRoute]] = {
    "/v1/chat/completions": partial(TextRoute, CHATS),
    "/v1/completions": partial(TextRoute, COMPLETIONS),
    "/v1/responses": partial(TextRoute, RESPONSES),
    "/v1/embeddings": EmbeddingsRoute,
    **dict.fromkeys(("/v1/rerank", "/v2/rerank", "/rerank"), RerankRoute),
}
"""What answers a path of inference."""


class OpenAIRoutes:
    """Finds the routes of requests.

    Args:
        settings: of the server.
        generation: counts texts.
        web_origins: which pages may ask.
    """

    def __init__(
        self, settings: ServerSettings, generation: GenerationFigures, web_origins: WebOriginPolicy
    ) -> None:
        self._generation = generation
        self._settings = settings.openai
        self._explicit = settings.repository.control_mode == "explicit"
        self._web_origins = web_origins
        self._turns = Turns()

    def find(self, context: RouteContext, head: RequestHead) -> Found | None:
        """Return what a request asks for, and its route; None for a request of another protocol."""
        path = head.path.rstrip("/")
        if path not in INFERENCES and not path.startswith("/v1/"):
            return None
        return self.wrapped(head, self._find(context, head, path))

    def wrapped(self, head: RequestHead, found: Found) -> Found:
        """Return a route that answers in OpenAI's form, and pages of sites that may ask alone."""
        origin = head.get(b"origin") or ""
        asks_as_page = bool(origin) or head.method != "POST"  # browsers send an origin with each POST
        text = self._web_origins.refusal(head.get(b"origin"), head.get(b"host")) if asks_as_page else ""
        if text:
            found, origin = Found(_OPEN, RefusedRoute(answer(invalid(text))._replace(status=403))), ""
        return found._replace(outer=lambda route: OpenAIRoute(route, origin))

    def unless_restricted(self, head: RequestHead, group: str, found: Found) -> Found:
        """Return a route, or a refusal without the header that its group requires."""
        restriction = self._settings.restrictions.get(group)
        if restriction is None:
            return found
        sent = head.get(restriction.header.lower().encode())
        if restriction.accepts(None if sent is None else sent.encode("latin-1")):
            return found
        return Found(_OPEN, RefusedRoute(restricted(restriction.header)))

    def _find(self, context: RouteContext, head: RequestHead, path: str) -> Found:
        method = head.method
        if method == "OPTIONS":
            return Found(_OPEN, PreflightRoute(head.get(b"origin") or ""))
        catalog = Catalog(context.service, self._settings, self._generation)
        if (make := INFERENCES.get(path)) is not None:
            if method != "POST":
                return Found(_OPEN, RefusedRoute(answer(wrong_method(method, path))))
            route = make(context, catalog, self._settings, head)
            return self.unless_restricted(head, "inference", Found(Ask("inference"), route))
        if path.startswith("/v1/responses/"):
            return Found(_OPEN, RefusedRoute(answer(not_kept())))
        match = _MODEL.fullmatch(path)
        if match is None:
            return Found(_OPEN, RefusedRoute(answer(unknown_url(method, path))))
        return self.unless_restricted(
            head, "model-repository", self._of_models(context, catalog, method, path, match)
        )

    def _of_models(
        self, context: RouteContext, catalog: Catalog, method: str, path: str, match: re.Match[str]
    ) -> Found:
        name, verb = unquote(match[1] or ""), match[2]
        if method != ("POST" if verb else "GET"):
            return Found(_OPEN, RefusedRoute(answer(wrong_method(method, path))))
        if verb:
            ask = Ask("model-repository", name, action=verb)
            return Found(ask, LoadRoute(context, catalog, name, verb == "load", self._explicit, self._turns))
        # Without the name, which may be an alias: a client finds the models alone that its token is for.
        return Found(Ask("metadata"), ModelsRoute(context, catalog, name))
