"""The REST route of what models and clients consume, by the ledger of the node that answers."""

import re
from datetime import UTC, datetime
from time import time
from typing import Any, Final

from fastapi import Request, Response
from pydantic import BaseModel

from app.core.cost.report import FIELDS
from app.core.encoding import to_json
from app.core.errors import invalid_arg
from app.ingress.rest.openapi.api import RestApi, RestRoute
from app.ingress.rest.openapi.bodies import json_response
from app.ingress.service.interface import InferenceService

_UNITS: Final = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_SINCE: Final = "24h"
_BY: Final = "token,model"
_MOST_LINES: Final = 1000


class CostReport(BaseModel):
    """As `nereid cost report --json` has it: the first 1,000 lines, and how many there are."""

    by: list[str]
    first: str
    last: str
    currency: str
    lines: list[dict[str, Any]]
    all_lines: int
    hours: dict[str, dict[str, float]]
    nodes: dict[str, dict[str, Any]]
    total: dict[str, Any]
    broken: int


def add_cost_route(api: RestApi, service: InferenceService) -> None:
    """Register the route."""

    async def cost(request: Request) -> Response:
        """What models and clients consume: `since` is a time or a duration, `by` says what lines are by."""
        since = _moment(request.query_params.get("since") or _SINCE)
        by = _by(request.query_params.get("by") or _BY)
        found = await service.cost(since, by)
        fields = {name: getattr(found, name) for name in found.__struct_fields__}
        shown = {"lines": found.lines[:_MOST_LINES], "all_lines": len(found.lines)}
        return json_response(to_json(fields | shown))

    api.add(RestRoute("model-repository", "GET", "/v2/nereid/cost", cost, response=CostReport))


def _moment(text: str) -> float:
    """Return Unix seconds of a duration until now, or of a date or time in UTC."""
    if found := re.fullmatch(r"(\d{1,6})([mhdw])", text, re.ASCII):
        return time() - int(found[1]) * _UNITS[found[2]]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise invalid_arg(f"'{text[:40]}' is neither a time nor a duration such as 24h or 7d") from None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def _by(text: str) -> tuple[str, ...]:
    fields = tuple(dict.fromkeys(text.split(",")))
    for field in fields:
        if field not in FIELDS:
            raise invalid_arg(f"'{field[:40]}' is none of {', '.join(FIELDS)}")
    return fields
