"""The REST API without inference: health, metadata, configuration and statistics of server and models."""

from typing import Final

from fastapi import Response
from fastapi.responses import PlainTextResponse

from app.core.errors import invalid_arg, unavailable
from app.core.installed.installation import manual_directory
from app.ingress.rest.home.site import Site
from app.ingress.rest.openapi import schemas
from app.ingress.rest.openapi.api import RestApi, RestRoute
from app.ingress.rest.openapi.bodies import JsonBodies, json_response
from app.ingress.rest.openapi.documentation import add_documentation, add_manual
from app.ingress.rest.openapi.drift import add_drift_routes
from app.ingress.rest.openapi.feedback import add_feedback_routes
from app.ingress.rest.openapi.home import Surroundings, add_home
from app.ingress.rest.openapi.inference_schemas import INFERENCE_ROUTES
from app.ingress.rest.openapi.insight import Insight, add_insight_routes, add_overview_routes
from app.ingress.rest.openapi.repository import add_repository_routes, add_rollout_routes
from app.ingress.rest.openapi.schemas import ModelName, ModelVersion
from app.ingress.rest.openapi.settings import add_settings_routes
from app.ingress.rest.openapi.shared_memory import add_shared_memory_routes
from app.ingress.service.interface import InferenceService
from app.ingress.tracing.observer import Observer
from app.protocol.http import messages
from app.protocol.http.v2 import DEFAULT_MAX_INPUT_SIZE
from app.routing.waiting_room import resolve_loaded

_MODEL: Final = "/v2/models/{model:segment}"
_VERSIONS: Final = ("", "/versions/{version:digits}")
_ALONE: Final = Surroundings()


def build_rest_api(
    service: InferenceService,
    max_input_size: int = DEFAULT_MAX_INPUT_SIZE,
    observer: Observer | None = None,
    around: Surroundings = _ALONE,
    insight: Insight | None = None,
) -> RestApi:
    """Build the application.

    Args:
        service: answers requests.
        max_input_size: maximum bytes of a JSON body.
        observer: has the log and trace settings; without one there are no routes for them.
        around: the front that serves it.
        insight: what the process knows of itself; without it, or an observer, there are no routes for that.
    """
    api, bodies = RestApi(INFERENCE_ROUTES), JsonBodies(max_input_size)
    _add_server_routes(api, _Server(service))
    _add_model_routes(api, _Models(service))
    add_repository_routes(api, service, bodies)
    add_rollout_routes(api, service, bodies)
    add_drift_routes(api, service)
    add_feedback_routes(api, service, bodies)
    add_overview_routes(api, service, around)
    if observer is not None:
        add_settings_routes(api, observer, service, bodies)
        if insight is not None:
            add_insight_routes(api, service, observer, insight)
    add_shared_memory_routes(api, service, bodies)
    add_documentation(api)
    site = Site(manual_directory())
    if site:
        add_manual(api, site)
    add_home(api, service, around._replace(manual=bool(site)))
    api.metrics_port = around.metrics_port
    return api


def _add_server_routes(api: RestApi, server: "_Server") -> None:
    api.add(RestRoute("health", "GET", "/v2/health/live", server.live))
    api.add(RestRoute("health", "GET", "/v2/health/ready", server.ready))
    api.add(RestRoute("health", "GET", "/-/healthz", server.healthz, response_class=PlainTextResponse))
    api.add(RestRoute("metadata", "GET", "/v2", server.metadata, response=schemas.ServerMetadata))


def _add_model_routes(api: RestApi, models: "_Models") -> None:
    # Before those with a model's name: "stats" in its place is no model.
    api.add(
        RestRoute("statistics", "GET", "/v2/models/stats", models.statistics, response=schemas.Statistics)
    )
    for version in _VERSIONS:
        path = f"{_MODEL}{version}"
        api.add(RestRoute("metadata", "GET", path, models.metadata, response=schemas.ModelMetadata))
        api.add(RestRoute("health", "GET", f"{path}/ready", models.ready))
        api.add(
            RestRoute(
                "model-config", "GET", f"{path}/config", models.config, response=schemas.ModelConfiguration
            )
        )
        api.add(
            RestRoute("statistics", "GET", f"{path}/stats", models.statistics, response=schemas.Statistics)
        )


class _Server:
    """Endpoints about the server."""

    def __init__(self, service: InferenceService) -> None:
        self._service = service

    async def live(self) -> Response:
        """Whether the server can be reached: 200 or 400."""
        return self._health(self._service.live())

    async def ready(self) -> Response:
        """Whether the server and its models are ready: 200 or 400."""
        return self._health(self._service.ready())

    def _health(self, healthy: bool) -> Response:
        if self._service.exiting():
            raise unavailable("Server exiting")
        return Response(status_code=200 if healthy else 400)

    async def healthz(self) -> Response:
        """Whether the server and its models are ready, as Ray Serve's proxy says it: 200 "success" or 503."""
        if not self._service.ready():
            raise unavailable("not ready")
        return PlainTextResponse("success")

    async def metadata(self) -> Response:
        """Name, version and extensions of the server."""
        return json_response(messages.encode_server_metadata(self._service.server_metadata()))


class _Models:
    """Endpoints about models; without a version, about the one that requests without a version get."""

    def __init__(self, service: InferenceService) -> None:
        self._service = service

    async def ready(self, model: ModelName, version: ModelVersion = "") -> Response:
        """Whether a model is ready."""
        if not self._service.model_ready(model, version):
            raise invalid_arg("Model version not ready")
        return Response()

    async def metadata(self, model: ModelName, version: ModelVersion = "") -> Response:
        """Inputs and outputs of a model."""
        await resolve_loaded(self._service, model, version)
        return json_response(messages.encode_model_metadata(self._service.model_metadata(model, version)))

    async def config(self, model: ModelName, version: ModelVersion = "") -> Response:
        """Configuration of a model, completed."""
        entry = await resolve_loaded(self._service, model, version)
        return json_response(messages.encode_config(entry.model_config))

    async def statistics(self, model: ModelName = "", version: ModelVersion = "") -> Response:
        """Statistics of a model; of all models without a name."""
        return json_response(messages.encode_statistics(await self._service.statistics(model, version)))
