"""REST routes of drift, with the bodies for the OpenAPI document."""

from typing import Any, Final

from fastapi import Response
from pydantic import BaseModel, Field

from app.core.encoding import to_json
from app.ingress.rest.openapi.api import RestApi, RestRoute
from app.ingress.rest.openapi.bodies import json_response
from app.ingress.rest.openapi.schemas import ModelName, ModelVersion
from app.ingress.service.interface import InferenceService

_DRIFT: Final = (
    "/v2/models/{model:segment}/drift",
    "/v2/models/{model:segment}/versions/{version:digits}/drift",
)


class FeatureDrift(BaseModel):
    """A number or category of each row; `counts` are recent rows by the cells of `feature`."""

    feature: dict[str, Any]
    tensor: str
    is_output: bool
    counts: list[int]
    evidence: float
    alarmed: bool
    distances: dict[str, float] | None = None


class Drift(BaseModel):
    """The drift of a version: evidence is an alarm from 1 / `rules.alpha` on; times are in Unix seconds."""

    model: str
    version: int
    rules: dict[str, Any]
    made: float
    source: str
    reference_rows: int
    rows: int
    recent: int
    features: list[FeatureDrift]
    since: float = 0.0
    confidence: float | None = None
    quality: dict[str, dict[str, int]] = Field(default_factory=dict)


def add_drift_routes(api: RestApi, service: InferenceService) -> None:
    """Register the routes."""

    async def drift(model: ModelName, version: ModelVersion = "") -> Response:
        """How far a model's requests are from its reference."""
        return json_response(to_json(await service.drift(model, version)))

    for path in _DRIFT:
        api.add(RestRoute("model-repository", "GET", path, drift, response=Drift))
