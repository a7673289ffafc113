"""Starts the fronts that the settings enable."""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from prometheus_client.metrics_core import Metric

from app.core.observability.alerts import READ
from app.core.observability.generation import GenerationFigures
from app.core.observability.log import keep_recent
from app.core.observability.recent_log import RecentLines
from app.core.system.nodes import Machines, this_machine
from app.ingress.access.guard import Guard
from app.ingress.access.service import GuardedService
from app.ingress.net.slow_clients import SendBufferLimit
from app.ingress.service.interface import InferenceService
from app.ingress.tracing.observer import Observer
from app.settings.flag.in_effect import in_effect
from app.settings.fronts import GrpcSettings, HttpSettings
from app.settings.settings import SETTINGS, ServerSettings

if TYPE_CHECKING:
    from app.ingress.clouds.front import PlatformFront
    from app.ingress.metrics.front import Collect
    from app.ingress.rest.front import FindRoute
    from app.ingress.rest.openapi.insight import Insight

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


class Parts(NamedTuple):
    """The parts that fronts are made of."""

    settings: ServerSettings
    service: InferenceService
    metrics: "Collect"
    observer: Observer
    send_buffers: SendBufferLimit
    guard: Guard | None
    generation: GenerationFigures
    own_metrics: Callable[[], Iterable[Metric]] = tuple
    machines: Callable[[], Machines] = this_machine


async def open_fronts(parts: Parts) -> list[Front]:
    """Listen for HTTP, gRPC, metrics and the protocols of clouds; a front that is disabled is not imported.

    Raises:
        OSError: an address or port cannot be used, or a certificate's file cannot be read.
        ValueError: a certificate does not fit its key.
    """
    settings, guard = parts.settings, parts.guard
    if guard is not None and guard.grants is not None:
        parts = parts._replace(service=GuardedService(parts.service))
    opened: list[Front] = []
    for enabled, make in (
        (settings.grpc.enabled, _grpc),
        (settings.metrics.enabled, _metrics),
        (settings.clouds.allow_sagemaker, _sagemaker),
        (settings.clouds.allow_vertex_ai, _vertex_ai),
        (settings.openai.listener(settings.http).enabled, _openai),
        (settings.http.enabled, _http),  # Last: a client that is told "ready" over HTTP may use the others.
    ):
        if enabled:
            opened.append(await _listening(make(parts)))
    return opened


class _Listener(Front, Protocol):
    async def start(self, address: str, port: int) -> int: ...


class _Made(NamedTuple):
    """A front, what the log calls it, and where it is to listen."""

    listener: _Listener
    title: str
    address: str
    port: int
    more: Mapping[str, Any] = {}


async def _listening(made: _Made) -> Front:
    port = await made.listener.start(made.address, made.port, **made.more)
    logger.info("Started %s at %s:%d", made.title, made.address, port)
    return made.listener


def _http(parts: Parts) -> _Made:
    from app.ingress.rest.front import HttpFront

    http, metrics = parts.settings.http, parts.settings.metrics
    front = HttpFront(
        parts.service,
        http,
        parts.observer,
        parts.send_buffers,
        metrics.port if metrics.enabled else 0,
        parts.guard,
        _compatible_protocols(parts),
        parts.settings.cluster.data_plane,
        _elsewhere("HTTP", "gRPC", parts.settings.grpc),
        _insight(parts),
        parts.settings.console,
    )
    tls = http.certificates.context() if http.certificates else None
    return _Made(front, "HTTPService", http.address, http.port, {"tls": tls})


def _insight(parts: Parts) -> "Insight":
    """Return what this process knows of itself; its last lines of the log are kept from now on."""
    from app.ingress.metrics.machine import Machine, plain
    from app.ingress.rest.openapi.insight import Insight

    settings, lines, shown = parts.settings, RecentLines(), parts.settings.metrics
    keep_recent(lines)

    @cache  # the devices are looked for when somebody asks
    def machine() -> Machine:
        return Machine(shown.cpu, shown.gpu, shown.interval_ms)

    def samples() -> dict[str, Any]:
        return plain(metric for metric in parts.own_metrics() if metric.name in READ)

    rows = [each._asdict() for each in in_effect(settings, SETTINGS)]
    plane, grafana = settings.cluster.data_plane, settings.console.grafana
    return Insight(rows, lambda: plain(machine().read()), lines, samples, parts.machines, plane, grafana)


def _elsewhere(name: str, other: str, place: HttpSettings | GrpcSettings) -> str:
    """Return what a client of the other protocol is told."""
    here = f"this is the server's {name} port"
    if not place.enabled:
        return f"{here}, and its {other} is off (--allow-{other.lower()})"
    return f"{here}: {other} is at port {place.port}" if place.port else f"{here}: {other} is at another one"


def _compatible_protocols(parts: Parts) -> list["FindRoute"]:
    """Return what finds the routes of other servers' protocols; those that are off are not imported."""
    settings = parts.settings
    found: list[FindRoute] = []
    if settings.openai.same_port:
        from app.ingress.openai.routes import OpenAIRoutes
        from app.ingress.rest.front import web_origins

        found.append(OpenAIRoutes(settings, parts.generation, web_origins(settings.http)).find)
    if settings.http.tfserving:
        from app.ingress.compatible import tfserving

        found.append(tfserving.find_route)
    if settings.http.torchserve:
        from app.ingress.compatible import torchserve

        found.append(torchserve.find_route)
    return found


def _openai(parts: Parts) -> _Made:
    from app.ingress.openai.front import OpenAIFront
    from app.ingress.openai.routes import OpenAIRoutes

    settings, service, metrics, observer, send_buffers, guard, generation, *_ = parts
    place = settings.openai.listener(settings.http)
    front = OpenAIFront(
        partial(OpenAIRoutes, settings, generation),
        metrics,
        service=service,
        settings=place,
        observer=observer,
        send_buffers=send_buffers,
        guard=guard,
        elsewhere=_elsewhere("OpenAI", "gRPC", settings.grpc),
    )
    tls = place.certificates.context() if place.certificates else None
    return _Made(front, "OpenAI HTTPService", place.address, place.port, {"tls": tls})


def _sagemaker(parts: Parts) -> _Made:
    from app.ingress.clouds.sagemaker import SageMakerFront

    return _platform(parts, SageMakerFront, "SageMaker", "Sagemaker HTTPService")


def _vertex_ai(parts: Parts) -> _Made:
    from app.ingress.clouds.vertex_ai import VertexAiFront

    return _platform(parts, VertexAiFront, "Vertex AI", "Vertex AI HTTPService")


def _platform(parts: Parts, kind: type["PlatformFront"], name: str, title: str) -> _Made:
    settings, service, metrics, observer, send_buffers, guard, *_ = parts
    place = settings.clouds.fronts(settings.http)[name]
    front = kind(service, place, settings.clouds, metrics, observer, send_buffers, guard)
    return _Made(front, title, place.address, place.port)


def _grpc(parts: Parts) -> _Made:
    from app.ingress.grpc.front import GrpcFront

    settings, service, _, observer, send_buffers, guard, *_ = parts
    elsewhere = _elsewhere("gRPC", "HTTP", settings.http)
    front = GrpcFront(
        service, settings.grpc, observer, send_buffers, guard, settings.cluster.data_plane, elsewhere
    )
    return _Made(front, "GRPCInferenceService", settings.grpc.address, settings.grpc.port)


def _metrics(parts: Parts) -> _Made:
    from app.ingress.metrics.front import MetricsFront

    place = parts.settings.metrics
    front = MetricsFront(parts.metrics, parts.settings.http.http1.path_prefixes, parts.guard)
    return _Made(front, "Metrics Service", place.address, place.port)
