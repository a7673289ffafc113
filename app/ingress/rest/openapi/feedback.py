"""REST routes of feedback on answers of models."""

import asyncio
from typing import Any

from fastapi import Request, Response
from pydantic import BaseModel, Field

from app.core.encoding import to_json
from app.core.feedback.records import FEW_RECORDS, MAX_RECORDS
from app.ingress.rest.openapi.api import RestApi, RestRoute
from app.ingress.rest.openapi.bodies import JsonBodies, json_response
from app.ingress.rest.openapi.schemas import ModelName, ModelVersion
from app.ingress.service.interface import InferenceService
from app.protocol.feedback import accepted_fields, figures_fields, parse_feedback


class FeedbackRecord(BaseModel):
    """What is said of one answer, by the `id` of its request or its `row` of the tape.

    It has a `score`, or what would have been right: the `label` (of several rows a list of labels) of
    `output`, which may be left out where a model has one output, or `outputs` by name.
    """

    id: str = ""
    row: str = ""
    score: float | None = Field(None, ge=0, le=1)
    label: Any = None
    outputs: dict[str, Any] | None = None
    output: str = ""


class FeedbackRequest(BaseModel):
    """Records; one alone may also be the whole body."""

    feedback: list[FeedbackRecord] = Field(min_length=1, max_length=MAX_RECORDS)


class FeedbackResponse(BaseModel):
    """How many records were kept; they are joined with the tape afterwards."""

    model_name: str
    accepted: int


class VersionScore(BaseModel):
    """The mean of the scores of a version with its 95 % interval; an accuracy if each was 0 or 1."""

    version: str
    scored: int
    score: float | None = None
    low: float | None = None
    high: float | None = None
    accuracy: bool | None = None


class FeedbackFigures(BaseModel):
    """What became of the records: each that was received is counted in one place."""

    model_name: str
    received: int
    versions: list[VersionScore]
    again: int
    unknown: int
    unusable: dict[str, int]
    waiting: int


def add_feedback_routes(api: RestApi, service: InferenceService, bodies: JsonBodies) -> None:
    """Register the routes."""
    endpoints = _Feedback(service, bodies)
    path = "/v2/models/{model:segment}"
    figures = f"{path}/feedback"
    api.add(RestRoute("statistics", "GET", figures, endpoints.figures, response=FeedbackFigures))
    for version in ("", "/versions/{version:digits}"):
        api.add(
            RestRoute(
                "feedback",
                "POST",
                f"{path}{version}/feedback",
                endpoints.feedback,
                response=FeedbackResponse,
                request=FeedbackRequest,
            )
        )


class _Feedback:
    """The endpoints."""

    def __init__(self, service: InferenceService, bodies: JsonBodies) -> None:
        self._service = service
        self._bodies = bodies

    async def feedback(self, request: Request, model: ModelName, version: ModelVersion = "") -> Response:
        """Say what was right, or how good an answer was."""
        document = await self._bodies.required(request)
        listed = document.get("feedback") if isinstance(document, dict) else None
        if isinstance(listed, list) and len(listed) > FEW_RECORDS:
            records = await asyncio.to_thread(parse_feedback, document)
        else:
            records = parse_feedback(document)
        await self._service.feedback(model, version, records)
        return json_response(to_json(accepted_fields(model, len(records))))

    async def figures(self, model: ModelName) -> Response:
        """The accuracy or mean score of each version, by feedback."""
        return json_response(to_json(figures_fields(model, await self._service.feedback_figures(model))))
