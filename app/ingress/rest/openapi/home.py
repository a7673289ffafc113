"""The route of the page at `/`: collects what it shows, and has it rendered off the event loop."""

import asyncio
import re
from collections import Counter
from time import gmtime, monotonic, strftime
from typing import Final, NamedTuple

from fastapi import Request, Response
from fastapi.responses import HTMLResponse
from tritonclient.grpc import service_pb2 as pb

from app.core.errors import InferError
from app.core.installed.installation import server_version
from app.core.system.addresses import is_loopback
from app.ingress.rest.home.models import Asking, Model, shown_models
from app.ingress.rest.home.page import HEADERS, Fact, Link, Server, render
from app.ingress.rest.openapi.api import RestApi, RestRoute
from app.ingress.rest.openapi.documentation import MANUAL
from app.ingress.service.interface import InferenceService
from app.native.choice import described
from app.settings.fronts import ConsoleSettings

_HOST: Final = re.compile(r"[\w.\-]+(:\d+)?|\[[0-9a-fA-F:.%]+\](:\d+)?", re.ASCII)
_INDEX_S: Final = 5.0
"""Longest wait for the repository manager; after that the page has what this process routes by."""
_AT_ONCE: Final = 2
"""Pages that are made at the same time."""
_TOKEN: Final = "-H 'Authorization: Bearer TOKEN'"


class Surroundings(NamedTuple):
    """What the page needs to know of the front that it is served by.

    Attributes:
        scheme: "http" or "https".
        data_plane: see `is_native`.
        metrics_port: where metrics are served; 0 if they are not, or on a port not known yet.
        console: whether and where the console is served.
        tokens: clients need one.
        inference_header: that inference requires, with a value that the page does not tell; "" for none.
        describes: whether who may see the index may see inputs and outputs.
        indexes: whether who may see statistics may see what the index says of models.
        manual: whether the documentation is served as a site.
    """

    scheme: str = "http"
    data_plane: str = "auto"
    metrics_port: int = 0
    console: ConsoleSettings = ConsoleSettings()
    tokens: bool = False
    inference_header: str = ""
    describes: bool = True
    indexes: bool = True
    manual: bool = False


def add_home(api: RestApi, service: InferenceService, around: Surroundings) -> None:
    """Register the route; who may see the repository's index may see the page."""
    home = _Home(service, around)
    route = RestRoute(
        "model-repository", "GET", "/", home.page, documented=False, response_class=HTMLResponse
    )
    api.add(route)


class _Home:
    def __init__(self, service: InferenceService, around: Surroundings) -> None:
        self._service = service
        self._around = around
        self._started = monotonic()
        self._since = strftime("%Y-%m-%d %H:%M UTC", gmtime())
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def page(self, request: Request) -> Response:
        """Answer a browser."""
        host = request.headers.get("host", "")
        host = host if _HOST.fullmatch(host) else "localhost"
        root = request.scope["root_path"]  # of a gateway
        async with self._turns:
            index, note = await self._index()
            served = self._service.served() if self._around.describes else []
            models = await asyncio.to_thread(shown_models, index, served, self._asking(host, root))
            server = self._server(models, host, root, note)
            return HTMLResponse(await asyncio.to_thread(render, server, models), headers=HEADERS)

    async def _index(self) -> tuple[list[pb.RepositoryIndexResponse.ModelIndex], str]:
        """Return the index, and why it is not the whole one; "" if it is."""
        try:
            found = await asyncio.wait_for(self._service.repository_index(), _INDEX_S)
            return list(found.models), ""
        except TimeoutError:
            why = f"no answer within {_INDEX_S:g} s"
        except InferError as error:
            why = error.message
        ready = [
            pb.RepositoryIndexResponse.ModelIndex(name=entry.name, version=str(entry.version), state="READY")
            for entry in self._service.served()
        ]
        return (
            ready,
            f"The repository manager did not tell its models ({why}): these are the ones in service here.",
        )

    def _asking(self, host: str, root: str) -> Asking | None:
        around = self._around
        headers = [_TOKEN] if around.tokens else []
        if around.inference_header:
            headers.append(f"-H '{around.inference_header}: VALUE'")
        curl = " ".join(["curl -s", *headers])
        return Asking(curl, f"{around.scheme}://{host}{root}") if around.describes else None

    def _server(self, models: list[Model], host: str, root: str, note: str) -> Server:
        metadata = self._service.server_metadata()
        state, look = self._state()
        plane, _, more = described(self._around.data_plane).partition(" ")
        looks = Counter(model.look for model in models)
        ready = f"{looks['bad']} not ready" if looks["bad"] else "nothing to mend"
        facts = [
            Fact("Versions ready", f"{looks['good']} of {len(models)}", ready),
            Fact("Uptime", _duration(monotonic() - self._started), f"since {self._since}"),
            Fact("Data plane", plane.strip(":"), more.strip("()") or "compiled, with Python for the rest"),
            Fact(
                "Answers as",
                f"tritonserver {metadata.version}",
                "v2 (KServe) protocol and Triton's extensions",
            ),
        ]
        hidden = [] if self._around.describes else ["Inputs and outputs are behind a header of their own."]
        notes = [*([note] if note else []), *hidden]
        return Server(metadata.name, server_version(), state, look, facts, self._links(host, root), notes)

    def _state(self) -> tuple[str, str]:
        if self._service.exiting():
            return "Exiting", "busy"
        return ("Ready", "good") if self._service.ready() else ("Not ready", "bad")

    def _links(self, host: str, root: str) -> list[Link]:
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        settings = self._around.console
        console = Link(
            "Console", f"{settings.scheme}://{name}:{settings.port}/", "live figures, forms to try models"
        )
        metrics = Link("Metrics", f"http://{name}:{self._around.metrics_port}/metrics", "for Prometheus")
        manual = Link("Manual", f"{root}{MANUAL}", "the documentation, with search")
        return [
            *([console] if _reached(settings, name) else []),
            *([manual] if self._around.manual else []),
            Link("HTTP API", f"{root}/docs", "every path, to try in the browser"),
            Link("OpenAPI", f"{root}/openapi.json", "the API as a document, for generated clients"),
            Link("Models", f"{root}/v2/models", "the index as JSON"),
            Link("Server", f"{root}/v2", "version and extensions as JSON"),
            *([metrics] if self._around.metrics_port else []),
        ]


def _reached(console: ConsoleSettings, name: str) -> bool:
    """Return whether who has asked a host of a name finds the console there, too."""
    if not console.enabled or not console.port:
        return False
    return not is_loopback(console.address) or is_loopback(name.strip("[]"))


def _duration(seconds: float) -> str:
    """Return a time in the two largest units that it has."""
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, seconds = divmod(int(seconds), size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])
