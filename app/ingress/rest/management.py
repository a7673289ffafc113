"""The REST API but for inference: health, metadata, configuration, statistics, repository control.

Paths are matched whole and raw, as Triton matches them: no trailing slash, no redirect, no percent-decoding.
"""

import asyncio
import base64
import binascii
from collections.abc import Callable
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.routing import Route

from app.core.errors import InferError, internal, invalid_arg, unavailable, unsupported
from app.ingress.rest.settings import settings_routes
from app.ingress.rest.shared_memory import shared_memory_routes
from app.ingress.service.interface import InferenceService
from app.ingress.tracing.observer import Observer
from app.protocol.http import messages, strict_json
from app.protocol.http.strict_json import error_prefix
from app.protocol.http.v2 import DEFAULT_MAX_INPUT_SIZE, encode_error
from app.protocol.restrictions import Category
from app.protocol.status import http_status

_JSON: Final = "application/json"
_HEAVY: Final = 32 << 10
"""Bytes of JSON from which a thread reads it."""
_MAX_VALUES: Final = 1 << 18
"""Of a document, commas in a configuration's text included."""
_MODEL: Final = "/v2/models/{model:segment}"
_VERSIONS: Final = ("", "/versions/{version:digits}")
_REPOSITORIES: Final = ("/v2/repository", "/v2/repository/{repository:segment}")


class _Segment(Convertor[str]):
    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


class _Digits(_Segment):
    regex = "[0-9]+"


register_url_convertor("segment", _Segment())
register_url_convertor("digits", _Digits())


class RestRoute(Route):
    """Route of one method and path, with the category that restricts it."""

    def __init__(self, category: Category, method: str, path: str, endpoint: Callable[..., Any]) -> None:
        super().__init__(path, endpoint, methods=[method])
        self.methods = {method}  # Starlette would add HEAD, which Triton answers with 405.
        self.category = category


class RestApi(FastAPI):
    """ASGI application whose routes each belong to a restriction category."""

    def add(self, category: Category, method: str, path: str, endpoint: Callable[..., Any]) -> None:
        """Register a route."""
        self.router.routes.append(RestRoute(category, method, path, endpoint))

    def category(self, path: str) -> Category | None:
        """Return the category of the first route that matches a path, None if no route does."""
        for route in self.routes:
            if isinstance(route, RestRoute) and route.path_regex.match(path):
                return route.category
        return None


def build_rest_api(
    service: InferenceService,
    max_input_size: int = DEFAULT_MAX_INPUT_SIZE,
    observer: Observer | None = None,
) -> RestApi:
    """Build the application.

    Args:
        service: what answers.
        max_input_size: bytes that a JSON body may take.
        observer: has the log and trace settings; without one there are no routes for them.
    """
    app = RestApi(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(InferError, _answer_error)
    api = _RestApi(service, max_input_size)
    app.add("health", "GET", "/v2/health/live", api.live)
    app.add("health", "GET", "/v2/health/ready", api.ready)
    app.add("metadata", "GET", "/v2", api.server_metadata)
    app.add("statistics", "GET", "/v2/models/stats", api.statistics)
    for version in _VERSIONS:
        app.add("metadata", "GET", f"{_MODEL}{version}", api.model_metadata)
        app.add("health", "GET", f"{_MODEL}{version}/ready", api.model_ready)
        app.add("model-config", "GET", f"{_MODEL}{version}/config", api.model_config)
        app.add("statistics", "GET", f"{_MODEL}{version}/stats", api.statistics)
    for repository in _REPOSITORIES:
        app.add("model-repository", "POST", f"{repository}/index", api.repository_index)
        app.add("model-repository", "POST", f"{repository}/models/{{model:segment}}/load", api.load)
        app.add("model-repository", "POST", f"{repository}/models/{{model:segment}}/unload", api.unload)
    if observer is not None:
        for route in settings_routes(observer, service, api.required_document):
            app.add(*route)
    for method, path, endpoint in shared_memory_routes(service, api.required_document):
        app.add("shared-memory", method, path, endpoint)
    return app


async def _answer_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return Response(encode_error(error.detail), error.status_code, media_type=_JSON)


async def _answer_error(_: Request, error: Exception) -> Response:
    return Response(encode_error(str(error)), http_status(error), media_type=_JSON)


def _json(body: bytes) -> Response:
    return Response(body, media_type=_JSON)


class _RestApi:
    """The endpoints."""

    def __init__(self, service: InferenceService, max_input_size: int) -> None:
        self._service = service
        self._max_input_size = max_input_size

    async def live(self, _: Request) -> Response:
        return self._health(self._service.live())

    async def ready(self, _: Request) -> Response:
        return self._health(self._service.ready())

    def _health(self, healthy: bool) -> Response:
        if self._service.exiting():
            raise unavailable("Server exiting")
        return Response(status_code=200 if healthy else 400)

    async def server_metadata(self, _: Request) -> Response:
        return _json(messages.encode_server_metadata(self._service.server_metadata()))

    async def model_ready(self, request: Request) -> Response:
        if not self._service.model_ready(*_model_version(request)):
            raise invalid_arg("Model version not ready")
        return Response()

    async def model_metadata(self, request: Request) -> Response:
        metadata = self._service.model_metadata(*_model_version(request))
        return _json(messages.encode_model_metadata(metadata))

    async def model_config(self, request: Request) -> Response:
        return _json(messages.encode_config(self._service.resolve(*_model_version(request)).model_config))

    async def statistics(self, request: Request) -> Response:
        statistics = await self._service.statistics(*_model_version(request))
        return _json(messages.encode_statistics(statistics))

    async def repository_index(self, request: Request) -> Response:
        document = await self.document(request)
        ready = document.get("ready", False) if isinstance(document, dict) else False
        if not isinstance(ready, bool):
            raise internal("Invalid value for 'ready': expected a boolean")
        return _json(messages.encode_repository_index(await self._service.repository_index(ready)))

    async def load(self, request: Request) -> Response:
        _refuse_repository(request)
        config, files = _load_parameters(await self.document(request))
        await self._service.load_model(request.path_params["model"], config, files)
        return Response(media_type=_JSON)

    async def unload(self, request: Request) -> Response:
        _refuse_repository(request)
        parameters = _parameters(await self.document(request))
        with error_prefix("Unable to parse 'unload_dependents'"):
            dependents = strict_json.as_bool(parameters.get("unload_dependents", False))
        await self._service.unload_model(request.path_params["model"], dependents)
        return Response(media_type=_JSON)

    async def document(self, request: Request) -> Any:
        """Return the request's JSON, an empty object without a body."""
        body = await _body(request)
        return await self._parsed(body) if body else {}

    async def required_document(self, request: Request) -> Any:
        """Return the request's JSON; no body is no JSON."""
        return await self._parsed(await _body(request))

    async def _parsed(self, body: bytes) -> Any:
        if len(body) > self._max_input_size:
            raise invalid_arg(
                f"request JSON size of {len(body)} bytes exceeds the maximum allowed input size of "
                f"{self._max_input_size} bytes. Use --http-max-input-size to increase the limit."
            )
        if len(body) > _HEAVY:
            return await asyncio.to_thread(_parse, body)
        return _parse(body)


def _parse(body: bytes) -> Any:
    strict_json.check_count(body, b",[{", _MAX_VALUES)
    document = strict_json.parse(body)
    strict_json.check_depth(document)
    return document


async def _body(request: Request) -> bytes:
    """The request's body, which the request then does not keep: a load may take minutes."""
    return b"".join([piece async for piece in request.stream()])


def _model_version(request: Request) -> tuple[str, str]:
    return request.path_params.get("model", ""), request.path_params.get("version", "")


def _refuse_repository(request: Request) -> None:
    if "repository" in request.path_params:
        raise unsupported("'repository_name' specification is not supported")


def _parameters(document: Any) -> dict[str, Any]:
    parameters = document.get("parameters", {}) if isinstance(document, dict) else {}
    if not isinstance(parameters, dict):
        raise internal("attempt to get members for non-object")
    return parameters


def _load_parameters(document: Any) -> tuple[str | None, dict[str, bytes]]:
    """The configuration and the files of a load request."""
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
