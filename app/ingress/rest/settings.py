"""REST routes of the logging and trace extensions."""

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Final

from fastapi import Request, Response

from app.core.errors import invalid_arg
from app.core.observability.trace_settings import GLOBAL
from app.ingress.service.interface import InferenceService
from app.ingress.tracing.observer import Observer
from app.protocol.observability import log_settings, trace_settings
from app.protocol.restrictions import Category

Document = Callable[[Request], Awaitable[Any]]
"""Reads a request's JSON."""
Endpoint = Callable[[Request], Awaitable[Response]]

_LOGGING: Final = "/v2/logging"
_TRACES: Final = ("/v2/trace/setting", "/v2/models/{model:segment}/trace/setting")


def settings_routes(
    observer: Observer, service: InferenceService, document: Document
) -> Iterator[tuple[Category, str, str, Endpoint]]:
    """Yield category, method, path and endpoint of each route."""
    yield "logging", "GET", _LOGGING, partial(_get_log, observer)
    yield "logging", "POST", _LOGGING, partial(_post_log, observer, document)
    for path in _TRACES:
        yield "trace", "GET", path, partial(_get_trace, observer, service)
        yield "trace", "POST", path, partial(_post_trace, observer, service, document)


async def _get_log(observer: Observer, _: Request) -> Response:
    return _json(log_settings.encode_http(observer.log))


async def _post_log(observer: Observer, document: Document, request: Request) -> Response:
    change = log_settings.decode_http(await document(request))
    return _json(log_settings.encode_http(await observer.change_log(change)))


async def _get_trace(observer: Observer, service: InferenceService, request: Request) -> Response:
    return _json(trace_settings.encode_http(observer.trace_setting(_model(service, request))))


async def _post_trace(
    observer: Observer, service: InferenceService, document: Document, request: Request
) -> Response:
    model = _model(service, request)
    change = trace_settings.decode_http(await document(request))
    return _json(trace_settings.encode_http(await observer.change_trace(model, change)))


def _model(service: InferenceService, request: Request) -> str:
    """The model of the path, which must be ready as in Triton; `GLOBAL` without one."""
    model: str = request.path_params.get("model", GLOBAL)
    if model and not service.model_ready(model):
        raise invalid_arg(f"Request for unknown model : {model}")
    return model


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
