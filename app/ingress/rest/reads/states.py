"""REST routes of what a model may have or not: null, where the API for programs answers 404.

A page asks for it again and again, and a browser notes each 404 as an error.
"""

from collections.abc import Awaitable
from typing import Any, Final, TypeVar

from fastapi import Response
from pydantic import BaseModel

from app.core.encoding import to_json
from app.core.errors import ErrorCode, InferError
from app.ingress.rest.openapi.api import RestApi, RestRoute
from app.ingress.rest.openapi.bodies import json_response
from app.ingress.rest.openapi.schemas import ModelName
from app.ingress.service.interface import InferenceService
from app.protocol.rollout import history_fields, status_fields

_ROLLOUT: Final = "/v2/nereid/models/{model:segment}/rollout"
_DRIFT: Final = "/v2/nereid/models/{model:segment}/drift"
_T = TypeVar("_T")


class RolloutState(BaseModel):
    """The rollout of a model and what it has served, as the routes of rollouts have them."""

    rollout: dict[str, Any] | None
    history: dict[str, Any] | None


class DriftState(BaseModel):
    """The drift of a model, whose evidence is an alarm from `alarm_from` on, or why there is none."""

    drift: dict[str, Any] | None
    alarm_from: float | None = None
    why: str = ""


def add_state_routes(api: RestApi, service: InferenceService) -> None:
    """Register the routes."""

    async def rollout(model: ModelName) -> Response:
        """The rollout of a model and its history; each null where there has been none."""
        status, _ = await _known(service.rollout(model))
        history, _ = await _known(service.rollout_history(model))
        fields = {
            "rollout": None if status is None else status_fields(status),
            "history": None if history is None else history_fields(history),
        }
        return json_response(to_json(fields))

    async def drift(model: ModelName) -> Response:
        """The drift of a model; null with the reason where it is not watched."""
        found, why = await _known(service.drift(model))
        alarm_from = None if found is None else 1 / found.rules.alpha
        return json_response(to_json({"drift": found, "alarm_from": alarm_from, "why": why}))

    api.add(RestRoute("model-repository", "GET", _ROLLOUT, rollout, response=RolloutState))
    api.add(RestRoute("model-repository", "GET", _DRIFT, drift, response=DriftState))


async def _known(answer: Awaitable[_T]) -> tuple[_T | None, str]:
    """Return an answer; None with the text where there is nothing to be told."""
    try:
        return await answer, ""
    except InferError as error:
        if error.code is not ErrorCode.NOT_FOUND:
            raise
        return None, error.message
