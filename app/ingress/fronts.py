"""Starts the fronts that the settings enable."""

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from app.ingress.access.guard import Guard
from app.ingress.access.service import GuardedService
from app.ingress.net.slow_clients import SendBufferLimit
from app.ingress.service.interface import InferenceService
from app.ingress.tracing.observer import Observer
from app.settings.fronts import HttpSettings
from app.settings.settings import MetricsSettings, ServerSettings

if TYPE_CHECKING:
    from app.ingress.rest.front import FindRoute

logger = logging.getLogger(__name__)


class Front(Protocol):
    """A listening server.

    Attributes:
        name: what it is called in metrics.
        service: what its connections are called in the log.
        connections: number of open connections.
        refusals: number of connections refused since the start.
    """

    name: str
    service: str

    @property
    def connections(self) -> int: ...

    @property
    def refusals(self) -> int: ...

    async def stop(self, grace_s: float) -> None: ...


async def open_fronts(
    settings: ServerSettings,
    service: InferenceService,
    metrics: Callable[[], Awaitable[bytes]],
    observer: Observer,
    send_buffers: SendBufferLimit,
    guard: Guard | None = None,
) -> list[Front]:
    """Listen for HTTP, gRPC, metrics and the protocols of clouds; a front that is disabled is not imported.

    Raises:
        OSError: an address or port cannot be used, or a certificate's file cannot be read.
        ValueError: a certificate does not fit its key.
    """
    fronts: list[Front] = []
    if guard is not None and guard.grants is not None:
        service = GuardedService(service)
    if settings.grpc.enabled:
        fronts.append(await _open_grpc(settings, service, observer, send_buffers, guard))
    if settings.metrics.enabled:
        fronts.append(await _open_metrics(settings.metrics, metrics, guard))
    if settings.clouds.allow_sagemaker:
        fronts.append(await _open_sagemaker(settings, service, observer, send_buffers, guard))
    if settings.clouds.allow_vertex_ai:
        fronts.append(await _open_vertex_ai(settings, service, metrics, observer, send_buffers, guard))
    if settings.http.enabled:  # Last: a client that is told "ready" over HTTP may use the others.
        fronts.append(await _open_http(settings, service, observer, send_buffers, guard))
    return fronts


async def _open_http(
    settings: ServerSettings,
    service: InferenceService,
    observer: Observer,
    send_buffers: SendBufferLimit,
    guard: Guard | None,
) -> Front:
    from app.ingress.rest.front import HttpFront

    metrics_port = settings.metrics.port if settings.metrics.enabled else 0
    compatible = _compatible_protocols(settings.http)
    plane = settings.cluster.data_plane
    front = HttpFront(service, settings.http, observer, send_buffers, metrics_port, guard, compatible, plane)
    tls = settings.http.certificates.context() if settings.http.certificates else None
    port = await front.start(settings.http.address, settings.http.port, tls=tls)
    logger.info("Started HTTPService at %s:%d", settings.http.address, port)
    return front


def _compatible_protocols(settings: HttpSettings) -> list["FindRoute"]:
    """Return what finds the routes of other servers' protocols; those that are off are not imported."""
    found: list[FindRoute] = []
    if settings.tfserving:
        from app.ingress.compatible import tfserving

        found.append(tfserving.find_route)
    if settings.torchserve:
        from app.ingress.compatible import torchserve

        found.append(torchserve.find_route)
    return found


async def _open_sagemaker(
    settings: ServerSettings,
    service: InferenceService,
    observer: Observer,
    send_buffers: SendBufferLimit,
    guard: Guard | None,
) -> Front:
    from app.ingress.clouds.sagemaker import SageMakerFront

    place = settings.clouds.fronts(settings.http)["SageMaker"]
    front = SageMakerFront(service, place, settings.clouds, observer, send_buffers, guard)
    port = await front.start(place.address, place.port)
    logger.info("Started Sagemaker HTTPService at %s:%d", place.address, port)
    return front


async def _open_vertex_ai(
    settings: ServerSettings,
    service: InferenceService,
    metrics: Callable[[], Awaitable[bytes]],
    observer: Observer,
    send_buffers: SendBufferLimit,
    guard: Guard | None,
) -> Front:
    from app.ingress.clouds.vertex_ai import VertexAiFront

    place = settings.clouds.fronts(settings.http)["Vertex AI"]
    front = VertexAiFront(service, place, settings.clouds, metrics, observer, send_buffers, guard)
    port = await front.start(place.address, place.port)
    logger.info("Started Vertex AI HTTPService at %s:%d", place.address, port)
    return front


async def _open_grpc(
    settings: ServerSettings,
    service: InferenceService,
    observer: Observer,
    send_buffers: SendBufferLimit,
    guard: Guard | None,
) -> Front:
    from app.ingress.grpc.front import GrpcFront

    grpc = settings.grpc
    front = GrpcFront(service, grpc, observer, send_buffers, guard, settings.cluster.data_plane)
    port = await front.start(grpc.address, grpc.port)
    logger.info("Started GRPCInferenceService at %s:%d", grpc.address, port)
    return front


async def _open_metrics(
    settings: MetricsSettings, metrics: Callable[[], Awaitable[bytes]], guard: Guard | None
) -> Front:
    from app.ingress.metrics.front import MetricsFront

    front = MetricsFront(metrics, guard=guard)
    port = await front.start(settings.address, settings.port)
    logger.info("Started Metrics Service at %s:%d", settings.address, port)
    return front
