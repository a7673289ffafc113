"""The fronts that the settings ask for, each with its limits."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from app.ingress.net.slow_clients import SendBufferLimit
from app.ingress.service.interface import InferenceService
from app.ingress.tracing.observer import Observer
from app.protocol.forwarding import HeaderForwarder
from app.settings.settings import ServerSettings


class Front(Protocol):
    """Something that listens."""

    async def stop(self, grace_s: float) -> None: ...


async def open_fronts(
    settings: ServerSettings,
    service: InferenceService,
    metrics: Callable[[], Awaitable[bytes]],
    observer: Observer,
    unsent: SendBufferLimit,
) -> list[Front]:
    """Start to listen for HTTP, gRPC and metrics; what is switched off is not even imported.

    Raises:
        OSError: an address or port cannot be used, or a certificate's file not be read.
        ValueError: a certificate does not fit its key.
    """
    fronts: list[Front] = []
    if settings.allow_grpc:
        fronts.append(await _open_grpc(settings, service, observer, unsent))
    if settings.allow_metrics:
        fronts.append(await _open_metrics(settings, metrics))
    if settings.allow_http:  # last: who hears "ready" over HTTP may use the others at once
        fronts.append(await _open_http(settings, service, observer, unsent))
    return fronts


async def _open_http(
    settings: ServerSettings, service: InferenceService, observer: Observer, unsent: SendBufferLimit
) -> Front:
    from app.ingress.rest.front import HttpFront

    pattern, certificates = settings.http_header_forward_pattern, settings.http_certificates()
    front = HttpFront(
        service,
        settings,
        observer=observer,
        restrictions=settings.http_restrictions(),
        forwarder=HeaderForwarder(pattern) if pattern else None,
        unsent=unsent,
    )
    tls = certificates.context() if certificates else None
    await front.start(settings.http_address, settings.http_port, tls=tls)
    return front


async def _open_grpc(
    settings: ServerSettings, service: InferenceService, observer: Observer, unsent: SendBufferLimit
) -> Front:
    from app.ingress.grpc.front import GrpcFront
    from app.ingress.grpc.settings import GrpcSettings

    pattern = settings.grpc_header_forward_pattern
    limits = GrpcSettings(
        concurrent_rpcs=settings.max_pending_requests,
        max_connections=settings.max_connections,
        max_message_bytes=settings.grpc_max_message_size,
        compression_level=settings.grpc_infer_response_compression_level,
        certificates=settings.grpc_certificates(),
        restrictions=settings.grpc_restrictions(),
        forwarder=HeaderForwarder(pattern) if pattern else None,
        reflection=settings.grpc_reflection,
        keepalive_time_ms=settings.grpc_keepalive_time,
        keepalive_timeout_ms=settings.grpc_keepalive_timeout,
        keepalive_without_calls=settings.grpc_keepalive_permit_without_calls,
        min_ping_interval_ms=settings.grpc_http2_min_recv_ping_interval_without_data,
        max_ping_strikes=settings.grpc_http2_max_ping_strikes,
        max_connection_age_ms=settings.grpc_max_connection_age,
        max_connection_age_grace_ms=settings.grpc_max_connection_age_grace,
    )
    front = GrpcFront(service, limits, observer, unsent)
    await front.start(settings.grpc_address, settings.grpc_port)
    return front


async def _open_metrics(settings: ServerSettings, metrics: Callable[[], Awaitable[bytes]]) -> Front:
    from app.ingress.metrics.front import MetricsFront

    front = MetricsFront(metrics)
    await front.start(settings.metrics_address, settings.metrics_port)
    return front
