"""The console's HTTP server: its pages, what they show, and what they ask of the server.

It decides nothing about models: an action is a request to the server's own API with the token of the person
at the browser, so that tokens, scopes, limits and audit apply as everywhere.
"""

import asyncio
import hashlib
import mimetypes
import socket
from collections.abc import Awaitable, Callable, Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from time import time
from typing import Final, NamedTuple

from aiohttp import web

from app.console.source import Refused, Source
from app.console.sources import Sources
from app.console.upstream import SANDBOX, Upstream
from app.core.encoding import to_json
from app.core.files.certificates import Certificates
from app.core.system.addresses import is_loopback
from app.protocol.http.web_origin import WebOriginPolicy

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
_FORWARDED: Final = ("/v2", "/v1")
_FETCHED_BY: Final = ("same-origin", "none")
"""Sec-Fetch-Site of a request of our own pages, or of a person who has typed the address."""
_MAX_SPAN_S: Final = 3600
_MAX_CURSOR: Final = 64
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Place(NamedTuple):
    """The address of a console, its clients, and whether the server behind it asks for no tokens.

    Attributes:
        address, port: to listen at.
        origins, hosts: see `WebOriginPolicy`.
        certificates: of this listener; None without TLS.
    """

    address: str = "127.0.0.1"
    port: int = 8003
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    certificates: Certificates | None = None


class _File(NamedTuple):
    body: bytes
    kind: str
    tag: str


class _Answered(Exception):
    """A request is answered already."""

    def __init__(self, response: web.Response) -> None:
        super().__init__(response.status)
        self.response = response


class Console:
    """The console of one server."""

    def __init__(self, upstream: Upstream, place: Place) -> None:
        self._upstream = upstream
        self._place = place
        self._sources = Sources(upstream.get)
        self._web_origins = WebOriginPolicy(
            place.address, place.origins, (*place.hosts, socket.gethostname())
        )
        self._files = dict(_static_files())
        self._runner: web.AppRunner | None = None

    async def start(self) -> int:
        """Listen; return the port.

        Raises:
            OSError: the address or port cannot be used, or a certificate cannot be read.
            ValueError: a certificate does not fit its key.
        """
        await self._upstream.open()
        self._sources.open()
        app = web.Application(middlewares=[self._guarded], client_max_size=1 << 20)
        app.router.add_get("/console/live", self._live)
        app.router.add_get("/console/history", self._history)
        app.router.add_get("/console/events", self._events)
        app.router.add_route("*", "/{path:.*}", self._other)
        # A page that is left cancels what it has asked for, a long inference too.
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=1.0, handler_cancellation=True
        )
        await self._runner.setup()
        files = self._place.certificates
        tls = files.context() if files else None
        site = web.TCPSite(self._runner, self._place.address, self._place.port, ssl_context=tls)
        await site.start()
        port: int = self._runner.addresses[0][1]
        return port

    async def stop(self) -> None:
        """Close."""
        if self._runner is not None:
            await self._runner.cleanup()
        await self._sources.close()
        await self._upstream.close()

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse what another web page asks for, and everything that the network could ask unknown."""
        headers = request.headers
        text = self._web_origins.refusal(headers.get("Origin"), headers.get("Host"))
        site = headers.get("Sec-Fetch-Site", "none")
        if not text and site not in _FETCHED_BY and request.path != "/":
            text = f"a page of another site may ask nothing of the console (Sec-Fetch-Site: {site})"
        if not text and not is_loopback(self._place.address) and self._is_open(request):
            text = await self._sources.why_not_open()
        try:
            return _refused(403, text) if text else await handler(request)
        except _Answered as answered:
            return answered.response

    def _is_open(self, request: web.Request) -> bool:
        return request.path.startswith(("/console/", *_FORWARDED))

    async def _source(self, request: web.Request) -> Source:
        try:
            return await self._sources.of(request.headers.get("Authorization", ""))
        except Refused as error:
            raise _Answered(_refused(error.status, str(error))) from None

    async def _live(self, request: web.Request) -> web.Response:
        """Answer with what has changed since `since`."""
        source = await self._source(request)
        found = await source.live(request.query.get("since", "")[:_MAX_CURSOR])
        told = {**found["server"], "url": self._upstream.url, "tokens": self._sources.tokens}
        return _json(found | {"server": told})

    async def _history(self, request: web.Request) -> web.Response:
        """Answer with the figures of a version, or of all for no model, over the last `span` seconds."""
        source = await self._source(request)
        model, span = request.query.get("model", ""), request.query.get("span", "300")
        key = f"{model}:{request.query.get('version', '')}" if model else ""
        seconds = min(int(span), _MAX_SPAN_S) if span.isascii() and span.isdigit() else 0
        if not seconds:
            return _refused(400, "'span' is a number of seconds")
        return _json(source.history.read(key, seconds, time()))

    async def _events(self, request: web.Request) -> web.Response:
        """Answer with the changes of states of a model, of all for none, that were seen; the latest first."""
        source = await self._source(request)
        return _json({"events": source.events(request.query.get("model", ""))})

    async def _other(self, request: web.Request) -> web.StreamResponse:
        path = request.rel_url.raw_path
        if path in _FORWARDED or path.startswith(tuple(f"{each}/" for each in _FORWARDED)):
            if {".", ".."} & set(path.split("/")):
                return _refused(400, "the path leads elsewhere")
            return await self._upstream.forward(request)
        found = self._files.get("index.html" if path == "/" else path[1:])
        if found is None:
            return _refused(404, "Not Found")
        if request.method not in ("GET", "HEAD"):
            return _refused(405, "Method Not Allowed")
        headers = {**HEADERS, "ETag": found.tag}
        if request.headers.get("If-None-Match") == found.tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=found.body, headers={**headers, "Content-Type": found.kind})


def _static_files() -> Iterator[tuple[str, _File]]:
    """Return the files of the pages by path; there are no others."""
    folders: list[tuple[str, Traversable]] = [("", files(__package__).joinpath("static"))]
    while folders:
        before, folder = folders.pop()
        for each in folder.iterdir():
            if each.is_dir():
                folders.append((f"{before}{each.name}/", each))
                continue
            body = each.read_bytes()
            kind = mimetypes.guess_type(each.name)[0] or "application/octet-stream"
            text = f"{kind}; charset=utf-8" if kind.startswith("text/") else kind
            yield f"{before}{each.name}", _File(body, text, f'"{hashlib.sha256(body).hexdigest()[:16]}"')


def _json(value: object, status: int = 200) -> web.Response:
    headers = {**HEADERS, "Content-Type": "application/json", "Cache-Control": "no-store"}
    return web.Response(body=to_json(value), status=status, headers=headers)


def _refused(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status, headers=SANDBOX)


async def serve(
    upstream: Upstream, place: Place, stop: asyncio.Event, started: Callable[[int], None]
) -> None:
    """Serve until `stop` is set; `started` is told the port."""
    console = Console(upstream, place)
    try:
        started(await console.start())
        await stop.wait()
    finally:
        await console.stop()
