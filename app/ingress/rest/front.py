"""The HTTP front: routes inference to its own handlers, and other requests to the REST application."""

import re
import socket
import ssl
from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import unquote

from app.core.errors import InferError
from app.core.hints import hinted
from app.core.observability.live_settings import LiveSettings
from app.ingress.access.guard import Ask, Guard
from app.ingress.access.http import guarded_route
from app.ingress.http1.asgi import AsgiRoute
from app.ingress.http1.exchange import FixedRoute, Route
from app.ingress.http1.server import HttpServer
from app.ingress.net.slow_clients import SendBufferLimit
from app.ingress.rest.context import Found, RouteContext
from app.ingress.rest.generate import GenerateRoute
from app.ingress.rest.infer import InferRoute
from app.ingress.rest.known_requests import known_requests
from app.ingress.rest.openapi.home import Surroundings
from app.ingress.rest.openapi.insight import Insight
from app.ingress.rest.openapi.management import build_rest_api
from app.ingress.rest.openapi.path_hints import method_hint
from app.ingress.rest.reads import add_reads
from app.ingress.service.interface import InferenceService, is_ready
from app.ingress.tracing.observer import Observer
from app.protocol.http.compiled import data_encoder, infer_decoder
from app.protocol.http.http1 import RequestHead
from app.protocol.http.v2 import JSON_HEADERS, encode_error
from app.protocol.http.web_origin import WebOriginPolicy
from app.settings.fronts import ConsoleSettings, HttpSettings

_INFER_PATH: Final = re.compile(r"/v2/models/([^/]+)(?:/versions/([0-9]+))?/(infer|generate|generate_stream)")
_MODEL_PATH: Final = re.compile(r"(/v2/(?:models|repository/(?:[^/]+/)?models)/)([^/]*%[^/]*)(/.*)?")
_DEFAULTS: Final = HttpSettings()
_NO_CONSOLE: Final = ConsoleSettings()
FindRoute = Callable[[RouteContext, RequestHead], Found | None]
"""Returns what a request asks for, and its route; None for a request of another protocol."""
_NO_INFERENCE: Final = {
    verb: FixedRoute(
        405, JSON_HEADERS, encode_error(hinted("Method Not Allowed", method_hint(["POST"], verb)))
    )
    for verb in ("infer", "generate", "generate_stream")
}
_NOT_FOUND: Final = FixedRoute(404, JSON_HEADERS, encode_error("Not Found"))
_NO_PAGE: Final = FixedRoute(
    404,
    JSON_HEADERS,
    encode_error(
        hinted("Not Found", "a page for browsers is here, by Accept: text/html; models: /v2/models")
    ),
)
"""The answer to programs at the path of the page for people: tritonserver has nothing there."""


def web_origins(settings: HttpSettings) -> WebOriginPolicy:
    """Return which web pages may use the management APIs of a front."""
    hosts = (*settings.allow_hosts, socket.gethostname())
    return WebOriginPolicy(settings.address, settings.allow_origins, hosts)


def _surroundings(
    settings: HttpSettings, data_plane: str, metrics_port: int, console: ConsoleSettings, guard: Guard | None
) -> Surroundings:
    inference = settings.restrictions.get("inference")
    return Surroundings(
        "https" if settings.certificates else "http",
        data_plane,
        metrics_port,
        console,
        tokens=guard is not None and guard.grants is not None,
        inference_header=inference.header if inference else "",
        describes="metadata" not in settings.restrictions,
        indexes="model-repository" not in settings.restrictions,
    )


class HttpFront:
    """Serves the v2 HTTP API.

    Args:
        service: answers requests.
        settings: address, limits, restrictions and the like.
        observer: traces and logs requests, and has the settings of both.
        send_buffers: limit on response bytes buffered for slow clients, shared with other fronts.
        metrics_port: see `Surroundings`.
        guard: decides who may do what; None if everybody may do everything.
        compatible: find the routes of other servers' protocols, which come first.
        data_plane: see `is_native`.
        elsewhere: see `HttpServer`.
        insight: see `build_rest_api`.
        console: see `Surroundings`.
    """

    name = "http"
    service = "HTTP service connections"

    def __init__(
        self,
        service: InferenceService,
        settings: HttpSettings = _DEFAULTS,
        observer: Observer | None = None,
        send_buffers: SendBufferLimit | None = None,
        metrics_port: int = 0,
        guard: Guard | None = None,
        compatible: Iterable[FindRoute] = (),
        data_plane: str = "auto",
        elsewhere: str = "",
        insight: Insight | None = None,
        console: ConsoleSettings = _NO_CONSOLE,
    ) -> None:
        observer, send_buffers = observer or Observer(LiveSettings()), send_buffers or SendBufferLimit()
        self._guard = guard
        self._restrictions = settings.restrictions
        self._web_origins = web_origins(settings)
        around = _surroundings(settings, data_plane, metrics_port, console, guard)
        self._rest_api = build_rest_api(service, settings.max_input_size, observer, around, insight)
        add_reads(self._rest_api, service, settings.max_input_size)
        self._context = RouteContext(
            service,
            observer,
            settings.forwarder,
            settings.max_input_size,
            settings.http1,
            send_buffers,
            infer_decoder(data_plane),
            data_encoder(data_plane),
        )
        self._compatible = tuple(compatible)
        known = known_requests(data_plane, settings)
        self._server = HttpServer(self.route, settings.http1, send_buffers, known, elsewhere)

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._server.state.connections)

    @property
    def refusals(self) -> int:
        """Number of connections refused at `--max-connections` since the start."""
        return self._server.state.refusals

    @property
    def buffered_bytes(self) -> int:
        """Bytes allocated for request bodies that arrive in more than one read."""
        return self._server.state.buffered

    async def start(
        self, address: str, port: int, reuse_port: bool = True, tls: ssl.SSLContext | None = None
    ) -> int:
        """Listen and return the port; see `HttpServer.start`."""
        return await self._server.start(address, port, reuse_port, tls)

    async def stop(self, grace_s: float) -> None:
        """Refuse new connections, finish requests in flight, close; see `HttpServer.stop`."""
        await self._server.stop(grace_s)

    def route(self, head: RequestHead) -> Route:
        for find in self._compatible:
            if (found := find(self._context, head)) is not None:
                return self.answered(head, found)
        if "%" in head.path:
            head = self._named(head)
        match = _INFER_PATH.fullmatch(head.path)
        if self._guard is None and not self._restrictions:
            return self._free_route(head, match)
        ask = Ask("inference", match[1]) if match else self._rest_api.ask(head.method, head.path)
        if ask is None:  # A server that asks who its clients are runs nothing that has no category.
            return _NOT_FOUND
        route = self._refusal(head, ask) or self._free_route(head, match)
        return guarded_route(self._guard, ask, head, route)

    def answered(self, head: RequestHead, found: Found) -> Route:
        """Return a route of another protocol, for clients that may."""
        route = self._refusal(head, found.ask) or found.route
        guarded = guarded_route(self._guard, found.ask, head, route)
        return guarded if found.outer is None else found.outer(guarded)

    def _named(self, head: RequestHead) -> RequestHead:
        """Return a request with the model's name for its percent-encoded form, which no model here has.

        Triton finds no model then: one whose name needs it, such as one outside of ASCII, has no other path.
        """
        match = _MODEL_PATH.fullmatch(head.path)
        if match is None:
            return head
        before, written, after = match.groups()
        try:
            name = unquote(written, errors="strict")
            is_taken = is_ready(self._context.service, written)
        except (UnicodeDecodeError, InferError):
            return head
        if "/" in name or not name.isprintable() or is_taken:
            return head
        return head._replace(path=f"{before}{name}{after or ''}")

    def guarded(self, head: RequestHead, ask: Ask, route: Route) -> Route:
        """Return a route of another protocol's management for clients that may, and no web page of others."""
        if text := self._web_origins.refusal(head.get(b"origin"), head.get(b"host")):
            route = FixedRoute(403, JSON_HEADERS, encode_error(text))
        return guarded_route(self._guard, ask, head, self._refusal(head, ask) or route)

    def _free_route(self, head: RequestHead, match: re.Match[str] | None) -> Route:
        if match is None:
            return self._management_route(head)
        if head.method != "POST":
            return _NO_INFERENCE[match[3]]
        model, version, verb = match[1], match[2] or "", match[3]
        if verb == "infer":
            return InferRoute(self._context, head, model, version)
        return GenerateRoute(self._context, head, model, version, verb == "generate_stream")

    def _management_route(self, head: RequestHead) -> Route:
        if text := self._web_origins.refusal(head.get(b"origin"), head.get(b"host")):
            return FixedRoute(403, JSON_HEADERS, encode_error(text))
        if head.path == "/" and not (head.method == "GET" and "text/html" in (head.get(b"accept") or "")):
            return _NO_PAGE
        return AsgiRoute(self._rest_api, head, self._context.tasks)

    def _refusal(self, head: RequestHead, ask: Ask) -> Route | None:
        restriction = None if ask.need == "metrics" else self._restrictions.get(ask.need)
        if restriction is None:
            return None
        sent = head.get(restriction.header.lower().encode())
        if restriction.accepts(None if sent is None else sent.encode("latin-1")):
            return None
        text = f"This API is restricted, expecting header '{restriction.header}'"
        return FixedRoute(403, JSON_HEADERS, encode_error(text))
