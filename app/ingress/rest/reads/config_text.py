"""REST routes of configurations as text (`config.pbtxt`), for the console's editor."""

import asyncio
import json
import re
from difflib import unified_diff
from typing import Any, Final

from fastapi import Request, Response
from google.protobuf import text_format
from pydantic import BaseModel, Field
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.json import config_to_json
from app.core.config.text import parse_pbtxt
from app.core.encoding import to_json
from app.core.errors import InferError, invalid_arg
from app.ingress.rest.openapi.api import RestApi, RestRoute
from app.ingress.rest.openapi.bodies import JsonBodies, json_response
from app.ingress.rest.openapi.schemas import ModelName, ModelVersion
from app.ingress.service.interface import InferenceService
from app.routing.waiting_room import resolve_loaded

_SOURCE: Final = "config.pbtxt"
_PREFIX: Final = f"failed to read text proto from {_SOURCE}: "
_PLACE: Final = re.compile(r"line (\d+), column (\d+): ")
_AROUND: Final = 3
"""Lines that are shown around a difference."""


class ConfigurationText(BaseModel):
    """The complete configuration of a version, as `config.pbtxt` would have it."""

    version: str
    text: str


class ConfigurationQuestion(BaseModel):
    """A `config.pbtxt` that somebody thinks of."""

    text: str


class ConfigurationAnswer(BaseModel):
    """What is wrong with it, or the `config` of a load request and the difference to what is served.

    `line` and `column` are from 1, 0 where no place is known; differences begin with "+", "-", " " or "@".
    """

    error: str = ""
    line: int = 0
    column: int = 0
    config: str = ""
    differences: list[str] = Field(default_factory=list)


def add_config_text_routes(api: RestApi, service: InferenceService, bodies: JsonBodies) -> None:
    """Register the routes."""
    texts = _Texts(service, bodies)
    for version in ("", "/versions/{version:digits}"):
        path = f"/v2/models/{{model:segment}}{version}/config/text"
        api.add(RestRoute("model-config", "GET", path, texts.text, response=ConfigurationText))
        api.add(
            RestRoute(
                "model-config",
                "POST",
                path,
                texts.check,
                response=ConfigurationAnswer,
                request=ConfigurationQuestion,
            )
        )


class _Texts:
    """The endpoints; nothing is changed."""

    def __init__(self, service: InferenceService, bodies: JsonBodies) -> None:
        self._service = service
        self._bodies = bodies

    async def text(self, model: ModelName, version: ModelVersion = "") -> Response:
        """Configuration of a model, completed, as text."""
        entry = await resolve_loaded(self._service, model, version)
        return json_response(to_json({"version": str(entry.version), "text": as_text(entry.model_config)}))

    async def check(self, request: Request, model: ModelName, version: ModelVersion = "") -> Response:
        """Read a configuration, and compare it with the one that is served."""
        document = await self._bodies.required(request)
        text = document.get("text") if isinstance(document, dict) else None
        if not isinstance(text, str):
            raise invalid_arg("'text' is to be a string")
        entry = await resolve_loaded(self._service, model, version)
        return json_response(await asyncio.to_thread(_checked, text, entry.model_config))


def as_text(config: mc.ModelConfig) -> str:
    """Return a configuration in protobuf's text format."""
    return str(text_format.MessageToString(config, as_utf8=True))


def _checked(text: str, served: mc.ModelConfig) -> bytes:
    return to_json(check(text, served))


def check(text: str, served: mc.ModelConfig) -> dict[str, Any]:
    """Return the fields of a `ConfigurationAnswer`. Takes a second for a MiB."""
    try:
        config = parse_pbtxt(text, _SOURCE)
    except InferError as error:
        return _wrong(error.message.removeprefix(_PREFIX))
    if config.name and config.name != served.name:
        return _wrong(f"the name is '{config.name}', but this is the configuration of '{served.name}'")
    config.name = served.name
    lines = unified_diff(as_text(served).splitlines(), as_text(config).splitlines(), n=_AROUND, lineterm="")
    return {
        "error": "",
        "line": 0,
        "column": 0,
        "config": json.dumps(config_to_json(config)),
        "differences": list(lines)[2:],
    }


def _wrong(text: str) -> dict[str, Any]:
    place = _PLACE.match(text)
    line, column = (int(place[1]), int(place[2])) if place else (0, 0)
    said = text[place.end() :] if place else text
    return {"error": said, "line": line, "column": column, "config": "", "differences": []}
