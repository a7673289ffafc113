"""Inference in the OpenAPI document; the HTTP front serves it without the REST application."""

from typing import Any, Final

from fastapi import Response
from pydantic import BaseModel, ConfigDict

from app.ingress.rest.openapi.api import RestRoute
from app.ingress.rest.openapi.schemas import ModelName, ModelVersion

Parameters = dict[str, str | int | float | bool]


class Tensor(BaseModel):
    """An input or output; without `data`, its bytes follow the JSON or lie in shared memory."""

    name: str
    shape: list[int]
    datatype: str
    data: list[Any] | None = None
    parameters: Parameters = {}


class RequestedOutput(BaseModel):
    """An output to return."""

    name: str
    parameters: Parameters = {}


class InferRequest(BaseModel):
    """An inference request."""

    id: str = ""
    inputs: list[Tensor]
    outputs: list[RequestedOutput] = []
    parameters: Parameters = {}


class InferResponse(BaseModel):
    """An inference response."""

    id: str = ""
    model_name: str
    model_version: str
    outputs: list[Tensor]
    parameters: Parameters = {}


class GenerateRequest(BaseModel):
    """Inputs and parameters of the model by name."""

    model_config = ConfigDict(extra="allow")

    id: str = ""
    parameters: Parameters = {}


class GenerateResponse(BaseModel):
    """Outputs of the model by name."""

    model_config = ConfigDict(extra="allow")

    model_name: str
    model_version: str


async def infer(model: ModelName, version: ModelVersion = "") -> Response:
    """Run inference.

    Tensors may follow the JSON as raw bytes: the header `Inference-Header-Content-Length` then gives the
    length of the JSON, and the parameter `binary_data_size` of a tensor its bytes. Without any JSON, the body
    is the only input of the model.
    """
    raise NotImplementedError


async def generate(model: ModelName, version: ModelVersion = "") -> Response:
    """Run inference with inputs and outputs as plain JSON fields."""
    raise NotImplementedError


async def generate_stream(model: ModelName, version: ModelVersion = "") -> Response:
    """Run inference; each response is a server-sent event, `data: <JSON>`."""
    raise NotImplementedError


_MODELS: Final = ("/v2/models/{model:segment}", "/v2/models/{model:segment}/versions/{version:digits}")


class _EventStream(Response):
    media_type = "text/event-stream"


def _routes(model: str) -> list[RestRoute]:
    generation = GenerateRequest
    return [
        RestRoute("inference", "POST", f"{model}/infer", infer, InferResponse, InferRequest),
        RestRoute("inference", "POST", f"{model}/generate", generate, GenerateResponse, generation),
        RestRoute(
            "inference",
            "POST",
            f"{model}/generate_stream",
            generate_stream,
            request=generation,
            response_class=_EventStream,
        ),
    ]


INFERENCE_ROUTES: Final = [route for model in _MODELS for route in _routes(model)]
