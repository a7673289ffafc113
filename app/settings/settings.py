"""The settings of a server: tritonserver's flags, with underscores, and Nereid's own.

`ServerSettings` is the one table of them; the command line, its usage text and the `args` of
serve_config.yaml all follow from it. Names and defaults are tritonserver's, but for the addresses, which
open no port to the network unless asked.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Annotated as A
from typing import Final

import msgspec

from app.core.certificates import Certificates, certificates
from app.core.config.rate_limit import Explicit, parse_resources
from app.core.installation import install_command
from app.core.observability.metrics_config import MetricsConfig, parse_metrics_config
from app.core.observability.trace_settings import TraceSetting, parse_trace_config
from app.protocol.restrictions import GRPC_PREFIX, Restrictions, parse_restrictions
from app.settings.deprecated import DEPRECATED, STRICT_MODEL_CONFIG, modernise
from app.settings.flags import Flag, Label, Setting, SettingsError, pairs, table
from app.settings.ignored import IGNORED
from app.settings.repositories import directories
from app.settings.validate import check

MIB: Final = 1 << 20
INT_MAX: Final = 2**31 - 1


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Every setting, validated and complete. Sizes are bytes unless the name says otherwise."""

    id: A[str, Flag("Name of this server in its metadata.", heading="Server")] = "triton"
    exit_timeout_secs: A[int, Flag("Seconds given to requests under way when the server stops.", low=0)] = 30

    log_verbose: A[int, Flag("Verbosity; 0 logs nothing verbose.", heading="Logging", counts=True, low=0)] = 0
    log_info: A[bool, Flag("Log information.")] = True
    log_warning: A[bool, Flag("Log warnings.")] = True
    log_error: A[bool, Flag("Log errors.")] = True
    log_format: A[str, Flag("Form of a log line's time and severity.", choices=("default", "ISO8601"))] = (
        "default"
    )
    log_file: A[str, Flag("File to log to instead of the console.")] = ""

    model_repository: A[
        tuple[str, ...],
        Flag("Directory of models, or s3://, gs://, as://; may be repeated.", heading="Model repository"),
    ] = ()
    exit_on_error: A[bool, Flag("Exit when a model cannot be loaded at the start.")] = True
    disable_auto_complete_config: A[
        bool, Flag("Take model configurations as they are written.", bare=True)
    ] = False
    strict_readiness: A[bool, Flag("Be ready only while every model is ready.")] = True
    model_control_mode: A[
        str,
        Flag(
            "none: load everything once; poll: follow changes on disk; explicit: load on request.",
            choices=("none", "poll", "explicit"),
        ),
    ] = "none"
    repository_poll_secs: A[int, Flag("Seconds between polls of the repository.", low=1)] = 15
    load_model: A[tuple[str, ...], Flag("Model to load at the start; may be repeated; '*' is all.")] = ()
    model_config_name: A[str, Flag("Use configs/NAME.pbtxt of a model where there is one.")] = ""
    model_load_thread_count: A[int, Flag("Models loaded at the same time.", low=1)] = 4
    model_load_retry_count: A[int, Flag("Further tries for a model that failed to load.", low=0)] = 0
    model_namespacing: A[bool, Flag("Let repositories hold models of the same name.")] = False

    allow_http: A[bool, Flag("Serve HTTP.", heading="HTTP")] = True
    http_address: A[str, Flag("Address to listen on; 0.0.0.0 is every interface.")] = "127.0.0.1"
    http_port: A[int, Flag("Port for HTTP; 0 takes a free one.", low=0, high=65535)] = 8000
    reuse_http_port: A[bool, Flag("Let several servers listen on the HTTP port.")] = False
    http_max_input_size: A[int, Flag("Largest request body.")] = 64 * MIB
    http_header_forward_pattern: A[
        str, Flag("Regular expression of the names of headers passed to models.")
    ] = ""
    http_restricted_api: A[
        tuple[str, ...], Flag("APIS:KEY=VALUE, APIs that need a header; may be repeated.")
    ] = ()
    http_use_ssl: A[bool, Flag("Serve HTTP over TLS.")] = False
    http_use_ssl_mutual: A[bool, Flag("Serve HTTP over TLS to clients with a certificate.")] = False
    http_server_cert: A[str, Flag("PEM file of the server's certificate.")] = ""
    http_server_key: A[str, Flag("PEM file of the server's key.")] = ""
    http_root_cert: A[str, Flag("PEM file of the clients' root certificate.")] = ""

    allow_grpc: A[bool, Flag("Serve gRPC.", heading="gRPC")] = True
    grpc_address: A[str, Flag("Address to listen on; 0.0.0.0 is every interface.")] = "127.0.0.1"
    grpc_port: A[int, Flag("Port for gRPC; 0 takes a free one.", low=0, high=65535)] = 8001
    reuse_grpc_port: A[bool, Flag("Let several servers listen on the gRPC port.")] = False
    grpc_header_forward_pattern: A[
        str, Flag("Regular expression of the names of metadata passed to models.")
    ] = ""
    grpc_restricted_protocol: A[
        tuple[str, ...], Flag("PROTOCOLS:KEY=VALUE, RPCs that need metadata; may be repeated.")
    ] = ()
    grpc_use_ssl: A[bool, Flag("Serve gRPC over TLS.")] = False
    grpc_use_ssl_mutual: A[bool, Flag("Serve gRPC over TLS to clients with a certificate.")] = False
    grpc_server_cert: A[str, Flag("PEM file of the server's certificate.")] = ""
    grpc_server_key: A[str, Flag("PEM file of the server's key.")] = ""
    grpc_root_cert: A[str, Flag("PEM file of the clients' root certificate.")] = ""
    grpc_infer_response_compression_level: A[
        str,
        Flag("Compression of responses.", choices=("none", "low", "medium", "high")),
    ] = "none"
    grpc_keepalive_time: A[int, Flag("Milliseconds between keepalive pings.", low=1, high=INT_MAX)] = 7200000
    grpc_keepalive_timeout: A[int, Flag("Milliseconds a ping may take.", low=1, high=INT_MAX)] = 20000
    grpc_keepalive_permit_without_calls: A[bool, Flag("Ping without calls under way.")] = False
    grpc_http2_min_recv_ping_interval_without_data: A[
        int, Flag("Milliseconds a client leaves between pings.", low=0, high=INT_MAX)
    ] = 300000
    grpc_http2_max_ping_strikes: A[int, Flag("Bad pings tolerated; 0: any.", low=0, high=INT_MAX)] = 2
    grpc_max_connection_age: A[int, Flag("Milliseconds a connection lives; 0: any.", low=0, high=INT_MAX)] = 0
    grpc_max_connection_age_grace: A[int, Flag("Milliseconds of grace after that.", low=0, high=INT_MAX)] = 0

    allow_metrics: A[bool, Flag("Serve Prometheus metrics.", heading="Metrics")] = True
    allow_gpu_metrics: A[bool, Flag("Report GPUs.")] = True
    allow_cpu_metrics: A[bool, Flag("Report processors and memory.")] = True
    metrics_address: A[str, Flag("Address to listen on; by default that of HTTP.")] = ""
    metrics_port: A[int, Flag("Port for metrics; 0 takes a free one.", low=0, high=65535)] = 8002
    metrics_interval_ms: A[float, Flag("Milliseconds between readings of the machine.", low=1)] = 2000
    metrics_config: A[tuple[str, ...], Flag("KEY=VALUE; may be repeated.")] = ()

    trace_config: A[tuple[str, ...], Flag("[MODE,]KEY=VALUE; may be repeated.", heading="Tracing")] = ()

    backend_directory: A[str, Flag("Directory of custom backends.", heading="Backends")] = (
        "/opt/tritonserver/backends"
    )
    backend_config: A[tuple[str, ...], Flag("[BACKEND,]KEY=VALUE; may be repeated.")] = ()
    repoagent_directory: A[str, Flag("Directory of repository agents.", later=True)] = ""

    cache_config: A[
        tuple[str, ...],
        Flag("local,size=BYTES or redis,host=NAME,...", heading="Response cache"),
    ] = ()

    rate_limit: A[
        str,
        Flag(
            "How instances are chosen.",
            heading="Rate limiter",
            choices=("off", "execution_count"),
        ),
    ] = "off"
    rate_limit_resource: A[tuple[str, ...], Flag("RESOURCE:COUNT[:DEVICE]; may be repeated.")] = ()

    allow_client_shm: A[bool, Flag("Let clients register shared memory.", heading="Memory and devices")] = (
        False
    )
    host_policy: A[tuple[str, ...], Flag("POLICY,KEY=VALUE; may be repeated.")] = ()
    model_load_gpu_limit: A[
        tuple[str, ...],
        Flag("DEVICE:FRACTION of GPU memory in use above which no model loads.", pair=":", later=True),
    ] = ()

    allow_sagemaker: A[bool, Flag("Serve SageMaker's protocol.", heading="Clouds", later=True)] = False
    sagemaker_port: A[int, Flag("Port for SageMaker.", later=True, low=0, high=65535)] = 8080
    sagemaker_safe_port_range: A[
        str, Flag("FIRST-LAST, ports the other endpoints may use.", pair="-", later=True)
    ] = ""
    allow_vertex_ai: A[bool, Flag("Serve Vertex AI's protocol.", later=True)] = False
    vertex_ai_port: A[int, Flag("Port for Vertex AI.", later=True, low=0, high=65535)] = 8080
    vertex_ai_default_model: A[str, Flag("Model of requests that name none.", later=True)] = ""

    ingress_replicas: A[int, Flag("Processes that listen for requests.", heading="Nereid", low=1)] = 1
    max_connections: A[int, Flag("Open client connections of an ingress replica.", low=1)] = 4096
    max_pending_requests: A[int, Flag("Requests under way in an ingress replica.", low=1)] = 65536
    max_pending_bytes: A[int, Flag("Bytes of the requests under way in an ingress replica.", low=1)] = (
        4096 * MIB
    )
    max_unsent_bytes: A[
        int, Flag("Bytes of answers that wait for slow clients in an ingress replica.", low=1)
    ] = 4096 * MIB
    http_idle_timeout_secs: A[float, Flag("Seconds an idle HTTP connection is kept; 0: always.", low=0)] = 300
    http_read_timeout_secs: A[float, Flag("Seconds an HTTP request may take to arrive; 0: any.", low=0)] = 60
    http_max_header_size: A[int, Flag("Largest request line and headers.", low=1024)] = 64 * 1024
    grpc_max_message_size: A[int, Flag("Largest gRPC message.", low=1, high=INT_MAX)] = INT_MAX
    grpc_reflection: A[bool, Flag("Serve gRPC's reflection protocol, which grpcurl asks.")] = False
    # Chose between two gRPC servers, of which "http2" is left; accepted for one release.
    grpc_front: A[str, Flag("The gRPC server.", choices=("http2", "grpcio"), later=True)] = "http2"
    channel_address: A[
        str,
        Flag("Address for the channels between nodes; 'node' is each node's address in the cluster."),
    ] = "127.0.0.1"
    arena_bytes: A[int, Flag("Shared memory for tensors on each channel; 0 sends them inline.", low=0)] = (
        256 * MIB
    )
    arena_threshold: A[int, Flag("Smallest tensor that travels through shared memory.", low=1)] = 32 * 1024
    allow_dashboard: A[bool, Flag("Start Ray's dashboard, on this machine only.")] = False
    model_load_timeout_secs: A[int, Flag("Seconds a model may take to load.", low=1)] = 600
    model_cache_directory: A[str, Flag("Directory for copies of remote models, on every node.")] = ""
    model_cache_bytes: A[int, Flag("Copies of remote models kept on a node.", low=0)] = 102400 * MIB
    model_override_bytes: A[int, Flag("Model files of load requests kept at a time.", low=0)] = 1024 * MIB

    warnings: tuple[str, ...] = ()
    """What the user should be told once; not a setting."""

    def backend_settings(self) -> dict[str, dict[str, str]]:
        """`--backend-config`, by backend name; "" holds those of every backend."""
        return pairs(self.backend_config, _backend_config_error, named=False)

    def cache_settings(self) -> dict[str, dict[str, str]]:
        """`--cache-config`: the settings of the one response cache, by its name; empty without one."""
        found: dict[str, dict[str, str]] = {}
        for entry in self.cache_config:
            name, comma, rest = entry.partition(",")
            if not (name and comma and rest):
                raise SettingsError(_cache_config_error(entry))
            found.setdefault(name, {}).update(
                pairs(tuple(rest.split(",")), _cache_config_error, named=False)[""]
            )
        return found

    def trace_settings(self) -> TraceSetting:
        """`--trace-config`, read."""
        try:
            setting = parse_trace_config(self.trace_config)
        except ValueError as error:
            raise SettingsError(str(error)) from None
        if setting.mode == "opentelemetry" and not _has_exporter():
            raise SettingsError(
                "--trace-config mode=opentelemetry needs packages that are not installed: "
                + install_command("otel")
            )
        return setting

    def rate_limits(self) -> Explicit | None:
        """`--rate-limit-resource`, by device and name; None without a rate limiter."""
        try:
            explicit = parse_resources(self.rate_limit_resource)
        except ValueError as error:
            raise SettingsError(str(error)) from None
        return None if self.rate_limit == "off" else explicit

    def host_policies(self) -> dict[str, dict[str, str]]:
        """`--host-policy`, by the policy's name."""
        return pairs(self.host_policy, _host_policy_error, named=True)

    def metrics_settings(self) -> dict[str, str]:
        """`--metrics-config`, key to value."""
        found = pairs(self.metrics_config, _metrics_config_error, named=False)
        for name, values in found.items():
            for key, value in values.items() if name else ():
                raise SettingsError(_metrics_config_error(f"{name},{key}={value}"))
        return found.get("", {})

    def latency_metrics(self) -> MetricsConfig:
        """`--metrics-config`, read."""
        try:
            return parse_metrics_config(self.metrics_settings())
        except ValueError as error:
            raise SettingsError(str(error)) from None

    def http_restrictions(self) -> Restrictions:
        """`--http-restricted-api`, by category."""
        return parse_restrictions(self.http_restricted_api, "http-restricted-api", "api")

    def grpc_restrictions(self) -> Restrictions:
        """`--grpc-restricted-protocol`, by category."""
        entries = self.grpc_restricted_protocol
        return parse_restrictions(entries, "grpc-restricted-protocol", "protocol", GRPC_PREFIX)

    def http_certificates(self) -> Certificates | None:
        """Files for TLS over HTTP; None for none."""
        files = (self.http_server_cert, self.http_server_key, self.http_root_cert)
        return certificates("http", self.http_use_ssl, self.http_use_ssl_mutual, files)

    def grpc_certificates(self) -> Certificates | None:
        """Files for TLS over gRPC; None for none."""
        files = (self.grpc_server_cert, self.grpc_server_key, self.grpc_root_cert)
        return certificates("grpc", self.grpc_use_ssl, self.grpc_use_ssl_mutual, files)


SETTINGS: Final = table(ServerSettings)


def from_args(args: Mapping[str, object], label: Label = str) -> ServerSettings:
    """Make the settings of what a user wrote.

    Args:
        args: setting name to value; a value is a string, or what YAML made of one; a list for a setting that
            may be repeated; None leaves the default.
        label: how messages name a setting.

    Raises:
        SettingsError: an unknown name, a value that does not fit, or settings that contradict each other.
    """
    given = {name: value for name, value in args.items() if value is not None}
    for name in given:
        if name not in known_names():
            raise SettingsError(f"unknown setting '{label(name)}'{suggestion(name, label)}")
    warnings = [f"warning: {label(name)} has no effect in Nereid" for name in given if name in IGNORED]
    modernise(given, SETTINGS, label, warnings)
    values = {
        name: SETTINGS[name].read(value, label(name)) for name, value in given.items() if name in SETTINGS
    }
    for name in IGNORED.keys() & given.keys():
        IGNORED[name].read(given[name], label(name))
    for name, value in values.items():
        _heed(SETTINGS[name], value, label(name), warnings)
    values["model_repository"] = directories(values.get("model_repository", ()), label("model_repository"))
    settings = ServerSettings(**values, warnings=tuple(warnings))
    if not settings.metrics_address:
        settings = msgspec.structs.replace(settings, metrics_address=settings.http_address)
    check(settings)
    return settings


def known_names() -> tuple[str, ...]:
    """Every name `from_args` takes."""
    return (*SETTINGS, *IGNORED, *DEPRECATED, STRICT_MODEL_CONFIG)


def suggestion(name: str, label: Label) -> str:
    """A "; did you mean" for a name that does not exist, or nothing."""
    close = get_close_matches(name, known_names(), n=1)
    return f"; did you mean '{label(close[0])}'?" if close else ""


def _heed(setting: Setting, value: object, label: str, warnings: list[str]) -> None:
    """Warn about a value that this version does nothing with."""
    if setting.flag.later and value != setting.default:
        warnings.append(f"warning: {label} has no effect in this version")


def _has_exporter() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


def _backend_config_error(entry: str) -> str:
    if entry.startswith(","):
        return (
            "No backend specified. --backend-config option format is <backend name>,<setting>=<value> or "
            f"<setting>=<value>. Got {entry}"
        )
    return f"--backend-config option format is '<backend name>,<setting>=<value>'. Got {entry}"


def _cache_config_error(entry: str) -> str:
    return f"--cache-config option format is '<cache name>,<setting>=<value>'. Got {entry}"


def _host_policy_error(entry: str) -> str:
    return f"--host-policy option format is '<policy name>,<setting>=<value>'. Got {entry}"


def _metrics_config_error(entry: str) -> str:
    return f"--metrics-config option format is <setting>=<value>. Got {entry}"
