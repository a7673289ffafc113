"""The REST API as an application: routes with their categories and schemas, and the OpenAPI document.

Paths are matched whole and raw, as Triton matches them: no trailing slash, no redirect, no percent-decoding
but for the names of models that no other name is (`front.py`).
"""

import inspect
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from app.core.errors import InferError, shortened
from app.core.hints import hinted
from app.ingress.access.caller import recorded
from app.ingress.access.guard import Ask
from app.ingress.rest.openapi.path_hints import method_hint, path_hint
from app.ingress.rest.openapi.schemas import Error
from app.protocol.http.v2 import encode_error
from app.protocol.restrictions import Category
from app.protocol.status import http_headers, http_status

logger = logging.getLogger(__name__)

Endpoint = Callable[..., Coroutine[Any, Any, Response]]
Body = type[BaseModel]

_ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    "4XX": {"model": Error, "description": "The request cannot be answered as it is."},
    "5XX": {"model": Error, "description": "The server cannot answer."},
}
_ABOUT: Final = "The v2 inference protocol with Triton's extensions."
_JSON: Final = "application/json"
_MAX_LOGGED_PATH: Final = 1024
_REFERENCE: Final = "#/components/schemas/{model}"


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


class RestRoute(APIRoute):
    """A route of one method and path.

    Args:
        category: what restricts it.
        method, path: of its requests.
        endpoint: answers; an argument with a default that the path does not name keeps its default.
        response, request: schemas of the bodies; None for an empty one.
        documented: whether the OpenAPI document has it.
        response_class: has the media type of a response that is not JSON.
        action: what the audit calls it; "" for a route that changes nothing.
        whole: a token for some models only does not suffice; by default for changes that name no model.
    """

    def __init__(
        self,
        category: Category,
        method: str,
        path: str,
        endpoint: Endpoint,
        response: Body | None = None,
        request: Body | None = None,
        documented: bool = True,
        response_class: type[Response] | None = None,
        action: str = "",
        whole: bool | None = None,
    ) -> None:
        super().__init__(
            path,
            _of_path(endpoint, path, bool(action)),
            methods=[method],
            tags=[category],
            response_model=None,
            response_class=response_class or (JSONResponse if response else Response),
            responses={**({200: {"model": response}} if response else {}), **_ERRORS},
            openapi_extra=_request_body(request) if request else None,
            include_in_schema=documented,
        )
        self.category = category
        self.method = method
        self.request = request
        self._action = action
        self._whole = bool(action) if whole is None else whole

    def ask(self, method: str, path: str) -> Ask:
        """Return what a request with a path of this route asks for."""
        match = self.path_regex.match(path)
        names = match.groupdict() if match else {}
        model, region = names.get("model", ""), names.get("region", "")
        action = self._action if method == self.method else ""
        is_open = self.category == "health" and not model
        return Ask(self.category, model, region, action, is_open, self._whole)


def _of_path(endpoint: Endpoint, path: str, audited: bool) -> Endpoint:
    """Return an endpoint that FastAPI gives the parameters that its path has."""
    signature = inspect.signature(endpoint)
    named = [
        parameter.replace(default=parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.default is parameter.empty or f"{{{parameter.name}:" in path
    ]

    @wraps(endpoint)
    async def answer(**arguments: Any) -> Response:
        if not audited:
            return await endpoint(**arguments)
        with recorded(arguments.get("model") or arguments.get("region", "")):
            return await endpoint(**arguments)

    answer.__signature__ = signature.replace(parameters=named)  # type: ignore[attr-defined]
    return answer


def _request_body(model: Body) -> dict[str, Any]:
    schema = {"$ref": _REFERENCE.format(model=model.__name__)}
    return {"requestBody": {"content": {_JSON: {"schema": schema}}}}


class RestApi(FastAPI):
    """ASGI application whose routes each belong to a restriction category.

    Args:
        described: routes of the document that are served elsewhere.

    Attributes:
        metrics_port: see `Surroundings`.
    """

    def __init__(self, described: Sequence[RestRoute] = ()) -> None:
        # No routes of FastAPI's own: each of ours is registered with its category.
        super().__init__(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
        self._described = described
        self.metrics_port = 0
        self.add_exception_handler(HTTPException, self._answer_http_error)
        self.add_exception_handler(InferError, _answer_error)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; at verbose level 1 it is logged, as by tritonserver."""
        if logger.isEnabledFor(logging.DEBUG) and scope["type"] == "http":
            logger.debug("HTTP request: %s %s", scope["method"], shortened(scope["path"], _MAX_LOGGED_PATH))
        await super().__call__(scope, receive, send)

    def add(self, route: RestRoute) -> None:
        """Register a route."""
        self.router.routes.append(route)

    def ask(self, method: str, path: str) -> Ask | None:
        """Return what a request asks for; None for a path that no route has."""
        found = None
        for route in self.routes:
            if isinstance(route, RestRoute) and route.path_regex.match(path):
                if route.method == method:
                    return route.ask(method, path)
                found = found or route.ask(method, path)  # answered by 405, but not to everybody
        return found

    async def _answer_http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = request.scope["path"]
        hint = ""
        if error.status_code == 404:
            slash = path.endswith("/") and self._methods(path[:-1])
            hint = "without the slash at its end" if slash else path_hint(path, self.metrics_port)
        elif error.status_code == 405:
            hint = method_hint(self._methods(path))
        return Response(encode_error(hinted(error.detail, hint)), error.status_code, media_type=_JSON)

    def _methods(self, path: str) -> list[str]:
        routes = [route for route in (*self.routes, *self._described) if isinstance(route, RestRoute)]
        return sorted({route.method for route in routes if route.path_regex.match(path)})

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        if not self.openapi_schema:
            routes = [*self.routes, *self._described]
            document = get_openapi(title="Nereid", version="2", description=_ABOUT, routes=routes)
            requests = [route.request for route in routes if isinstance(route, RestRoute) and route.request]
            # FastAPI adds the models of responses; those of requests it would also validate by.
            _, models = models_json_schema(
                [(model, "validation") for model in requests], ref_template=_REFERENCE
            )
            document["components"]["schemas"] |= models["$defs"]
            self.openapi_schema = document
        return self.openapi_schema


async def _answer_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, InferError)
    return Response(encode_error(str(error)), http_status(error), http_headers(error), media_type=_JSON)
