"""REST routes of recorded requests, for the console: those of the tape of the node that answers.

Who may load models may see them: of what was not kept there is the size alone, or a hash.
"""

from typing import Any, Final

import msgspec
from fastapi import Request, Response
from pydantic import BaseModel, Field

from app.core.encoding import to_json
from app.core.errors import invalid_arg
from app.ingress.access.caller import GRANT
from app.ingress.rest.openapi.api import RestApi, RestRoute
from app.ingress.rest.openapi.bodies import JsonBodies, json_response
from app.ingress.rest.openapi.schemas import ModelName
from app.ingress.service.again import send_again
from app.ingress.service.interface import InferenceService
from app.tape.browsing import MOST_ROWS, all_fields, summary
from nereid_client.tape.rows import Row, TapeResponse

_MODELS: Final = "/v2/nereid/tape"
_ROWS: Final = "/v2/models/{model:segment}/tape"
_ROW: Final = f"{_ROWS}/{{row:segment}}"
_MOST: Final = 50
_MAX_BEFORE: Final = 1 << 63


class RecordedModels(BaseModel):
    """The models of the tape, with their rows."""

    models: list[dict[str, Any]]


class RecordedRows(BaseModel):
    """Rows without values, the newest first; `before` is where to go on, "" at the end."""

    rows: list[dict[str, Any]]
    looked: int
    before: str


class RecordedRow(BaseModel):
    """A row in full, with up to 1,000 values of each tensor."""

    key: str
    inputs: list[dict[str, Any]]
    responses: list[dict[str, Any]]


class SendAgain(BaseModel):
    """Which version is asked; by default the one that requests without a version get."""

    version: str = Field("", max_length=20)


class SentAgain(BaseModel):
    """The new answer, and how each output differs from the recorded one by the rules of rollouts."""

    version: str
    responses: list[dict[str, Any]]
    left_out: int
    compared: list[dict[str, Any]]
    not_compared: list[str]


def add_tape_routes(api: RestApi, service: InferenceService, bodies: JsonBodies) -> None:
    """Register the routes."""
    tape = _Tape(service, bodies)
    api.add(RestRoute("model-repository", "GET", _MODELS, tape.models, response=RecordedModels))
    api.add(RestRoute("model-repository", "GET", _ROWS, tape.rows, response=RecordedRows))
    api.add(RestRoute("model-repository", "GET", _ROW, tape.row, response=RecordedRow))
    api.add(
        RestRoute(
            "model-repository",
            "POST",
            f"{_ROW}/replay",
            tape.replay,
            response=SentAgain,
            request=SendAgain,
            action="replay",
        )
    )


class _Tape:
    """The endpoints."""

    def __init__(self, service: InferenceService, bodies: JsonBodies) -> None:
        self._service = service
        self._bodies = bodies

    async def models(self) -> Response:
        """Models of which requests are recorded on this node."""
        found = await self._service.tape().models()
        grant = GRANT.get()
        seen = [each for each in found if grant is None or grant.permits(each.model)]
        return json_response(to_json({"models": seen}))

    async def rows(self, request: Request, model: ModelName) -> Response:
        """Recorded requests: `where` has conditions, `most` says how many, `before` is that of an answer."""
        query = request.query_params
        most = _number(query.get("most", ""), MOST_ROWS) or _MOST
        before = _number(query.get("before", ""), _MAX_BEFORE)
        found = await self._service.tape().rows(model, query.get("where", ""), most, before)
        fields = {**found._asdict(), "before": str(found.before or "")}  # larger than a double can say
        return json_response(to_json(fields))

    async def row(self, model: ModelName, row: str) -> Response:
        """A recorded request with its answer."""
        found = await self._service.tape().row(model, row)
        return json_response(to_json(_fields(found)))

    async def replay(self, request: Request, model: ModelName, row: str) -> Response:
        """Send a recorded request again; return the answer, compared with the recorded one."""
        document = await self._bodies.optional(request)
        version = document.get("version", "") if isinstance(document, dict) else ""
        if not isinstance(version, str):
            raise invalid_arg("'version' is to be a string")
        recorded = await self._service.tape().row(model, row)
        found = await send_again(self._service, recorded, version)
        fields = msgspec.structs.asdict(found)
        return json_response(to_json({**fields, "responses": [*map(_response, found.responses)]}))


def _number(text: str, most: int) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise invalid_arg(f"'{text[:40]}' is no number")
    return min(int(text), most)


def _fields(row: Row) -> dict[str, Any]:
    return {
        **msgspec.structs.asdict(summary(row)),
        "parameters": row.parameters,
        "requested": row.requested,
        "sequence": str(row.sequence_id or ""),
        "probability": row.probability,
        "inputs": all_fields(row.inputs),
        "responses": [*map(_response, row.responses)],
    }


def _response(response: TapeResponse) -> dict[str, Any]:
    return {
        "offset_ms": response.offset_ns / 1e6,
        "code": response.code,
        "error": response.error,
        "outputs": all_fields(response.outputs),
    }
