"""The REST route of the overview, which a console reads once a second, with its body for the document."""

from typing import Any, Final

import msgspec
from fastapi import Request, Response
from pydantic import BaseModel

from app.core.encoding import to_json
from app.core.identifiers import name_of
from app.ingress.rest.home.models import worded
from app.ingress.rest.home.remedies import explained
from app.ingress.rest.openapi.api import RestApi, RestRoute
from app.ingress.rest.openapi.bodies import json_response
from app.ingress.rest.openapi.home import Surroundings
from app.ingress.service.interface import InferenceService
from app.ingress.service.overview import VersionRow

_PATH: Final = "/v2/nereid/overview"


class Figures(BaseModel):
    """Counters since the version was loaded; `buckets` are requests by duration, see `bounds_s`."""

    at: float
    ok: int
    failed: int
    request_ns: int
    queue_ns: int
    compute_ns: int
    rows: int
    executions: int
    pending: int
    restarts: int
    buckets: list[int]


class Version(BaseModel):
    """A version of a model; `word` and `look` (good, busy, bad, off) are its state for people."""

    name: str
    model: str
    version: str
    state: str
    word: str
    look: str
    reason: str
    remedy: str
    kind: str
    batched: bool
    decoupled: bool
    sequences: bool
    idle: bool
    instances: int
    replicas: int
    weight: float | None
    load_s: float
    ready_at: float
    figures: Figures | None


class ServerOverview(BaseModel):
    """The versions that changed since the answer whose `cursor` was sent as `after`; all without it.

    `names` are name and version of all versions, if any came or went.
    """

    cursor: str
    at: float
    ready: bool
    bounds_s: list[float]
    versions: list[Version]
    names: list[tuple[str, str]] | None


def add_overview_routes(api: RestApi, service: InferenceService, around: Surroundings) -> None:
    """Register the route; who may see statistics may see it."""

    async def overview(request: Request) -> Response:
        """State and counters of all versions, as far as they changed since the answer with cursor `after`."""
        found = await service.overview(request.query_params.get("after", ""))
        rows = [_described(row, around.indexes) for row in found.versions]
        answer = {name: getattr(found, name) for name in found.__struct_fields__} | {"versions": rows}
        return json_response(to_json(answer))

    api.add(RestRoute("statistics", "GET", _PATH, overview, response=ServerOverview))


def _described(row: VersionRow, with_reason: bool) -> dict[str, Any]:
    word, look = worded(row.state, row.reason, row.idle)
    reason, remedy = explained(row.state, row.reason) if with_reason else ("", "")
    fields = {name: getattr(row, name) for name in row.__struct_fields__}
    figures = None if row.figures is None else msgspec.to_builtins(row.figures)
    told = {"word": word, "look": look, "reason": reason, "remedy": remedy, "figures": figures}
    return {"model": name_of(row.name), **fields, **told}
