"""Refuses settings that contradict each other."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from app.core.identifiers import SEPARATOR
from app.protocol.forwarding import HeaderForwarder
from app.settings.flags import SettingsError

if TYPE_CHECKING:
    from app.settings.settings import ServerSettings


def check(settings: "ServerSettings") -> None:
    """Hold settings against each other.

    Raises:
        SettingsError: in tritonserver's words where it has some.
    """
    if settings.load_model and settings.model_control_mode != "explicit":
        raise SettingsError(
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well."
        )
    if "*" in settings.load_model and len(set(settings.load_model)) > 1:
        raise SettingsError("Wildcard model name '*' must be the ONLY startup model if specified at all.")
    if settings.http_max_input_size <= 0:
        raise SettingsError("Error: --http-max-input-size must be greater than 0.")
    _check_namespaces(settings)
    settings.backend_settings()
    settings.rate_limits()
    settings.host_policies()
    _check_cache(settings.cache_settings())
    settings.latency_metrics()
    settings.trace_settings()
    _check_fronts(settings)
    listeners = list(_listeners(settings))
    for position, (name, address, port) in enumerate(listeners):
        for other, other_address, other_port in listeners[position + 1 :]:
            if port == other_port != 0 and address == other_address:
                raise SettingsError(
                    f"The server cannot listen to {name} requests and {other} requests at the same "
                    f"address and port {address}:{port}"
                )


def _check_namespaces(settings: "ServerSettings") -> None:
    """An identifier of a model must tell where its namespace ends."""
    for path in settings.model_repository if settings.model_namespacing else ():
        if SEPARATOR in path.rpartition("/")[2]:
            raise SettingsError(f"--model-namespacing: the repository '{path}' has '{SEPARATOR}' in its name")


def _check_cache(caches: Mapping[str, Mapping[str, str]]) -> None:
    if len(caches) > 1:
        raise SettingsError(
            "--cache-config: found multiple cache configurations, but only a single cache is currently"
            " supported"
        )
    for name, values in caches.items():
        if name not in ("local", "redis"):
            raise SettingsError(f"--cache-config: unknown cache '{name}', expected 'local' or 'redis'")
        if name == "local":
            size = values.get("size", "")
            if not size.isdecimal() or not int(size) or len(values) > 1:
                raise SettingsError(f"--cache-config=local: expected size=BYTES, got '{_listing(values)}'")


def _listing(values: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in values.items())


def _check_fronts(settings: "ServerSettings") -> None:
    """Refuse what would keep a front from starting, or leave it open where it should not be."""
    try:
        settings.http_restrictions()
        settings.grpc_restrictions()
        settings.http_certificates()
        settings.grpc_certificates()
    except ValueError as error:
        raise SettingsError(str(error)) from None
    for front in ("http", "grpc"):
        try:
            HeaderForwarder(getattr(settings, f"{front}_header_forward_pattern"))
        except ValueError as error:
            raise SettingsError(f"--{front}-header-forward-pattern: {error}") from None


def _listeners(settings: "ServerSettings") -> Iterator[tuple[str, str, int]]:
    if settings.allow_http:
        yield "HTTP", settings.http_address, settings.http_port
    if settings.allow_grpc:
        yield "GRPC", settings.grpc_address, settings.grpc_port
    if settings.allow_metrics:
        yield "metrics", settings.metrics_address, settings.metrics_port
