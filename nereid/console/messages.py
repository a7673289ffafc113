"""What the server tells the user who has started it. Pure functions; the callers print."""

from collections.abc import Iterable
from typing import Final

from app.core.installed.installation import server_version
from app.ingress.rest.home.first_request import first_request
from app.native.choice import described
from app.routing.table import DEPENDENCY, RoutingTable, VersionEntry
from app.settings.settings import ServerSettings

_ANY: Final = ("0.0.0.0", "::")
_SHOWN: Final = 20
_LINES: Final = 30
_TOKEN: Final = " -H 'Authorization: Bearer TOKEN'"


def starting(settings: ServerSettings) -> str:
    """Return the line of the first second."""
    return f"Nereid {server_version()} is starting with the models of {_repositories(settings)}"


def waiting_for_ray(seconds: float) -> str:
    """Return the line of a start that takes its time."""
    return f"Nereid is starting Ray ({seconds:.0f} s so far)"


def models_loading(seconds: float) -> str:
    """Return the line for the moment when Ray runs."""
    return f"Ray runs after {seconds:.1f} s; loading the models"


def ready(
    settings: ServerSettings, table: RoutingTable, seconds: float, log: str, pid: int, dashboard: str = ""
) -> str:
    """Return the banner of a server that has loaded its models.

    Args:
        settings: the server's.
        table: what it serves.
        seconds: since its start.
        log: the file with the messages of Ray; "" when they are printed.
        pid: the process to stop.
        dashboard: the address of Ray's dashboard; "" without one.
    """
    plane = described(settings.cluster.data_plane)
    rows = [*_addresses(settings), ("Models", _repositories(settings)), ("Data plane", plane)]
    if settings.access.tokens_file:
        make = f"nereid token new --scope=infer --file={settings.access.tokens_file}"
        rows.append(("Tokens", f"{_TOKEN.strip()} sends one, made by: {make}"))
    if dashboard:
        rows.append(("Ray", f"{dashboard} is its dashboard"))
    if log:
        rows.append(("Ray's log", log))
    rows.append(("Stop", f"Ctrl-C, or kill {pid}"))
    lines = [f"Nereid {server_version()}: {counted(table)} after {seconds:.0f} s"]
    lines += [f"  {title:<10} {text}" for title, text in rows]
    return "\n".join([*lines, *_unready(table), *_try(settings, table)])


def failed(table: RoutingTable, log: str) -> str:
    """Return why a start has ended, the failed models last, and how to serve the others."""
    where = [f"Messages of Ray: {log}"] if log else []
    error = "error: creating server: Internal - failed to load all models"
    hint = f"{counted(table)}. To serve those that are, start with --exit-on-error=false."
    return "\n".join([error, *where, hint, *_unready(table)])


def platform_fault(settings: ServerSettings, table: RoutingTable) -> str:
    """Return why the front for Vertex AI cannot serve these models; "" if it can, or is off."""
    if not settings.clouds.allow_vertex_ai:
        return ""
    try:
        settings.clouds.vertex_ai_model({entry.name for entry in table.ready})
    except ValueError as error:
        return f"error: failed to start Vertex AI service: Invalid argument - {error}"
    return ""


def http_url(settings: ServerSettings) -> str:
    """Return the address of the HTTP API for a client here; "" for none, or a port yet to choose."""
    http = settings.http
    scheme = "https" if http.certificates else "http"
    return f"{scheme}://{_host(http.address)}:{http.port}" if http.enabled and http.port else ""


def grpc_address(settings: ServerSettings) -> str:
    """Return the address of the gRPC API; see `http_url`."""
    grpc = settings.grpc
    return f"{_host(grpc.address)}:{grpc.port}" if grpc.enabled and grpc.port else ""


def metrics_url(settings: ServerSettings) -> str:
    """Return the address of the metrics; see `http_url`."""
    metrics = settings.metrics
    host = _host(metrics.address or settings.http.address)
    return f"http://{host}:{metrics.port}/metrics" if metrics.enabled and metrics.port else ""


def _host(address: str) -> str:
    """Return an address that a client on this machine can use."""
    if address in _ANY:
        return "localhost"
    return f"[{address}]" if ":" in address else address


def _addresses(settings: ServerSettings) -> Iterable[tuple[str, str]]:
    url = http_url(settings)
    if settings.http.enabled:
        yield "HTTP", url or _chosen("HTTPService")
    if url:
        yield "", f"{url}/docs describes the API"
    if settings.grpc.enabled:
        yield "gRPC", grpc_address(settings) or _chosen("GRPCInferenceService")
    if settings.metrics.enabled:
        yield "Metrics", metrics_url(settings) or _chosen("Metrics Service")
    console = settings.console
    if console.enabled and console.port:
        yield "Console", f"{console.scheme}://{_host(console.address)}:{console.port}"


def _chosen(service: str) -> str:
    return f"a free port: see 'Started {service}' above"


def _repositories(settings: ServerSettings) -> str:
    return ", ".join(settings.repository.paths)


def counted(table: RoutingTable) -> str:
    """Return "12 of 13 models are ready"; models that were unloaded by request do not count."""
    if table.failed:
        return "not ready, the models cannot be read"
    models: dict[str, list[VersionEntry]] = {}
    for entry in table.entries:
        if not entry.unloaded_by_request:
            models.setdefault(entry.name, []).append(entry)
    ready = sum(not any(map(_is_unready, versions)) for versions in models.values())
    return f"{ready} of {len(models)} models are ready" if models else "ready, without any model"


def _is_unready(entry: VersionEntry) -> bool:
    return entry.state != "READY" and not entry.unloaded_by_request


def _unready(table: RoutingTable) -> list[str]:
    """Return the reason of each version that failed to load, ensembles after the models that they need."""
    unready = sorted(filter(_is_unready, table.entries), key=_causes_first)
    lines = [f"Not ready: {_title(entry)}: {_told(entry)}" for entry in unready[:_SHOWN]]
    return [*lines, f"Not ready: {len(unready) - _SHOWN} more"] if len(unready) > _SHOWN else lines


def _causes_first(entry: VersionEntry) -> tuple[int, str, int]:
    # The reason of an ensemble has that of its model, which may be an ensemble as well.
    return entry.reason.count(DEPENDENCY), entry.model, entry.version


def _told(entry: VersionEntry) -> str:
    first, *others = entry.own_reason.splitlines() or ["no reason is known"]
    others = [line for line in others if line.strip()]
    more = [f"  ... {len(others) - _LINES} more lines are in the log"] if len(others) > _LINES else []
    return "\n".join([first, *(f"  {line}" for line in others[:_LINES]), *more])


def _title(entry: VersionEntry) -> str:
    return entry.model if entry.version < 0 else f"{entry.model} version {entry.version}"


def _try(settings: ServerSettings, table: RoutingTable) -> list[str]:
    """Return a first request, when there is one that works as it stands."""
    url = http_url(settings)
    if not url or settings.http.restrictions or settings.http.certificates:
        return []
    curl = f"curl -s{_TOKEN if settings.access.tokens_file else ''}"
    if settings.repository.control_mode == "explicit" and not table.ready:
        return ["Load a model:", f"  {curl} -X POST {url}/v2/repository/models/NAME/load"]
    request = first_request(table, curl, url) or f"{curl} {url}/v2/models"
    return ["A first request:", f"  {request}"]
