"""REST routes of the logging and trace extensions, and of what switches the tape."""

from typing import Final

from fastapi import Request, Response

from app.core.observability.trace_settings import GLOBAL
from app.ingress.rest.openapi import schemas
from app.ingress.rest.openapi.api import RestApi, RestRoute
from app.ingress.rest.openapi.bodies import JsonBodies, json_response
from app.ingress.rest.openapi.schemas import ModelName
from app.ingress.service.interface import InferenceService, require_traceable
from app.ingress.tracing.observer import Observer
from app.protocol.observability import log_settings, tape_settings, trace_settings

_LOGGING: Final = "/v2/logging"
_TRACES: Final = ("/v2/trace/setting", "/v2/models/{model:segment}/trace/setting")
_TAPES: Final = ("/v2/nereid/tape/setting", "/v2/models/{model:segment}/tape/setting")


def add_settings_routes(
    api: RestApi, observer: Observer, service: InferenceService, bodies: JsonBodies
) -> None:
    """Register the routes."""
    log, change = schemas.LogSettings, schemas.LogSettingsChange
    endpoints = _Settings(observer, service, bodies)
    api.add(RestRoute("logging", "GET", _LOGGING, endpoints.log, response=log))
    api.add(
        RestRoute(
            "logging",
            "POST",
            _LOGGING,
            endpoints.change_log,
            response=log,
            request=change,
            action="change-log-settings",
        )
    )
    for path in _TRACES:
        api.add(RestRoute("trace", "GET", path, endpoints.trace, response=schemas.TraceSettings))
        api.add(
            RestRoute(
                "trace",
                "POST",
                path,
                endpoints.change_trace,
                response=schemas.TraceSettings,
                request=schemas.TraceSettingsChange,
                action="change-trace-settings",
            )
        )
    _add_tape_routes(api, endpoints)


def _add_tape_routes(api: RestApi, endpoints: "_Settings") -> None:
    setting, change = schemas.TapeSettings, schemas.TapeSettingsChange
    for path in _TAPES:
        api.add(RestRoute("trace", "GET", path, endpoints.tape, response=setting))
        api.add(
            RestRoute(
                "trace",
                "POST",
                path,
                endpoints.change_tape,
                response=setting,
                request=change,
                action="change-tape-settings",
            )
        )


class _Settings:
    """The endpoints."""

    def __init__(self, observer: Observer, service: InferenceService, bodies: JsonBodies) -> None:
        self._observer = observer
        self._service = service
        self._bodies = bodies

    async def log(self) -> Response:
        """Settings of the log."""
        return json_response(log_settings.encode_http(self._observer.log))

    async def change_log(self, request: Request) -> Response:
        """Change settings of the log."""
        change = log_settings.decode_http(await self._bodies.required(request))
        return json_response(log_settings.encode_http(await self._observer.change_log(change)))

    async def trace(self, model: ModelName = GLOBAL) -> Response:
        """Settings of tracing, of the server or of a model."""
        require_traceable(self._service, model)
        return json_response(trace_settings.encode_http(self._observer.trace_setting(model)))

    async def change_trace(self, request: Request, model: ModelName = GLOBAL) -> Response:
        """Change settings of tracing, of the server or of a model."""
        require_traceable(self._service, model)
        change = trace_settings.decode_http(await self._bodies.required(request))
        return json_response(trace_settings.encode_http(await self._observer.change_trace(model, change)))

    async def tape(self, model: ModelName = GLOBAL) -> Response:
        """What the tape records, of the server or of a model."""
        self._require_tape(model)
        return json_response(tape_settings.encode_http(self._observer.tape_setting(model)))

    async def change_tape(self, request: Request, model: ModelName = GLOBAL) -> Response:
        """Change what the tape records, of the server or of a model."""
        self._require_tape(model)
        change = tape_settings.decode_http(await self._bodies.required(request))
        return json_response(tape_settings.encode_http(await self._observer.change_tape(model, change)))

    def _require_tape(self, model: str) -> None:
        """Check that there is a tape, and a model of this name; "" stands for the whole server.

        Raises:
            InferError: UNSUPPORTED, INVALID_ARG.
        """
        self._service.tape()
        require_traceable(self._service, model)
