"""REST routes of the model repository: index, load, unload and rollouts."""

import base64
import binascii
from typing import Any, Final

from fastapi import Request, Response

from app.core.errors import internal, invalid_arg, unsupported
from app.ingress.rest.openapi import rollout_schemas, schemas
from app.ingress.rest.openapi.api import RestApi, RestRoute
from app.ingress.rest.openapi.bodies import JsonBodies, json_response
from app.ingress.rest.openapi.schemas import ModelName, RepositoryName
from app.ingress.service.interface import InferenceService
from app.protocol.http import messages, strict_json
from app.protocol.http.strict_json import error_prefix
from app.protocol.rollout import parse_change

_REPOSITORIES: Final = ("/v2/repository", "/v2/repository/{repository:segment}")


def add_repository_routes(api: RestApi, service: InferenceService, bodies: JsonBodies) -> None:
    """Register the routes."""
    endpoints = _Repository(service, bodies)
    api.add(RestRoute("model-repository", "GET", "/v2/models", endpoints.models, response=schemas.Index))
    for repository in _REPOSITORIES:
        api.add(
            RestRoute(
                "model-repository",
                "POST",
                f"{repository}/index",
                endpoints.index,
                response=schemas.Index,
                request=schemas.IndexRequest,
            )
        )
        model = f"{repository}/models/{{model:segment}}"
        api.add(
            RestRoute(
                "model-repository",
                "POST",
                f"{model}/load",
                endpoints.load,
                request=schemas.LoadRequest,
                action="load",
            )
        )
        api.add(
            RestRoute(
                "model-repository",
                "POST",
                f"{model}/unload",
                endpoints.unload,
                request=schemas.UnloadRequest,
                action="unload",
            )
        )


def add_rollout_routes(api: RestApi, service: InferenceService, bodies: JsonBodies) -> None:
    """Register the routes."""
    endpoints = _Rollouts(service, bodies)
    status, change = "/v2/models/{model:segment}/rollout", "/v2/repository/models/{model:segment}/rollout"
    api.add(RestRoute("model-repository", "GET", status, endpoints.status, response=rollout_schemas.Rollout))
    shown = rollout_schemas.RolloutHistory
    api.add(RestRoute("model-repository", "GET", f"{status}/history", endpoints.history, response=shown))
    api.add(
        RestRoute(
            "model-repository",
            "POST",
            change,
            endpoints.change,
            response=rollout_schemas.Rollout,
            request=rollout_schemas.RolloutRequest,
            action="change-rollout",
        )
    )


class _Repository:
    """The endpoints."""

    def __init__(self, service: InferenceService, bodies: JsonBodies) -> None:
        self._service = service
        self._bodies = bodies

    async def models(self) -> Response:
        """Models and their states, as the repository's index has them."""
        return json_response(messages.encode_repository_index(await self._service.repository_index()))

    async def index(self, request: Request, repository: RepositoryName = "") -> Response:
        """Models of the repository and their states."""
        document = await self._bodies.optional(request, deep=True)
        ready = document.get("ready", False) if isinstance(document, dict) else False
        if not isinstance(ready, bool):
            raise internal("Invalid value for 'ready': expected a boolean")
        return json_response(messages.encode_repository_index(await self._service.repository_index(ready)))

    async def load(self, request: Request, model: ModelName, repository: RepositoryName = "") -> Response:
        """Load or reload a model, optionally with a configuration and files of the request."""
        _refuse_repository(repository)
        config, files = _load_parameters(await self._bodies.optional(request))
        await self._service.load_model(model, config, files)
        return json_response()

    async def unload(self, request: Request, model: ModelName, repository: RepositoryName = "") -> Response:
        """Unload a model."""
        _refuse_repository(repository)
        parameters = _parameters(await self._bodies.optional(request))
        with error_prefix("Unable to parse 'unload_dependents'"):
            dependents = strict_json.as_bool(parameters.get("unload_dependents", False))
        await self._service.unload_model(model, dependents)
        return json_response()


class _Rollouts:
    """The endpoints."""

    def __init__(self, service: InferenceService, bodies: JsonBodies) -> None:
        self._service = service
        self._bodies = bodies

    async def status(self, model: ModelName) -> Response:
        """The rollout of a model that is on, or its last one."""
        return json_response(messages.encode_rollout(await self._service.rollout(model)))

    async def change(self, request: Request, model: ModelName) -> Response:
        """Start, change, pause, resume, promote or abort the rollout of a model, or roll the model back."""
        change = parse_change(await self._bodies.required(request))
        return json_response(messages.encode_rollout(await self._service.change_rollout(model, change)))

    async def history(self, model: ModelName) -> Response:
        """What a model has served: when, why and by whom that was changed."""
        return json_response(messages.encode_rollout_history(await self._service.rollout_history(model)))


def _refuse_repository(name: str) -> None:
    if name:
        raise unsupported("'repository_name' specification is not supported")


def _parameters(document: Any) -> dict[str, Any]:
    parameters = document.get("parameters", {}) if isinstance(document, dict) else {}
    if not isinstance(parameters, dict):
        raise internal("attempt to get members for non-object")
    return parameters


def _load_parameters(document: Any) -> tuple[str | None, dict[str, bytes]]:
    """Return the configuration and the files of a load request."""
    config: str | None = None
    files: dict[str, bytes] = {}
    for key, value in _parameters(document).items():
        text = strict_json.as_text(value)
        if key == "config":
            config = text
        elif key.startswith("file:"):
            files[key.removeprefix("file:")] = _decode_file(key, text)
        else:
            raise internal("unexpected error on creating Triton parameter")
    return config, files


def _decode_file(key: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise invalid_arg(f"failed to decode the base64 content of load parameter '{key}'") from None
