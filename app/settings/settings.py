"""The settings of a server, by section.

Names and defaults of flags are tritonserver's, except that the addresses open no port to the network by
default, and those under the heading "Nereid".
"""

from typing import Annotated as A
from typing import Final

import msgspec

from app.core.config.rate_limit import ResourceCounts, parse_resources
from app.core.observability.log import LOG_FORMATS, LogConfig
from app.core.observability.metrics_config import MetricsConfig
from app.core.observability.trace_settings import TraceSetting
from app.core.system.addresses import is_loopback
from app.settings.clouds import CloudSettings, with_environment
from app.settings.cluster import ClusterSettings
from app.settings.cost import CostSettings
from app.settings.flag import parsers
from app.settings.flag.flags import NEREID, Flag, Section, table
from app.settings.fronts import MIB, ConsoleSettings, GrpcSettings, HttpSettings
from app.settings.openai import OpenAISettings
from app.settings.residency import ResidencySettings
from app.settings.tape import TapeSettings


class GeneralSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Name and shutdown of the server."""

    id: A[str, Flag("id", "Name of this server in its metadata.")] = "triton"
    exit_timeout_s: A[
        int, Flag("exit_timeout_secs", "Seconds to complete requests in flight at shutdown.", low=0)
    ] = 30


class LogFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Flags that a `LogConfig` is made of; the fields have its names."""

    log_verbose_level: A[
        int, Flag("log_verbose", "Level of verbose messages; 0 for none.", counts=True, low=0)
    ] = 0
    log_info: A[bool, Flag("log_info", "Log information.")] = True
    log_warning: A[bool, Flag("log_warning", "Log warnings.")] = True
    log_error: A[bool, Flag("log_error", "Log errors.")] = True
    log_format: A[
        str, Flag("log_format", "Format of a log line's time and severity.", choices=LOG_FORMATS)
    ] = "default"
    log_file: A[str, Flag("log_file", "File to log to instead of the console.")] = ""


def _log_config(flags: LogFlags) -> LogConfig:
    return LogConfig(**msgspec.structs.asdict(flags))


class AccessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Rights of clients."""

    tokens_file: A[
        str,
        Flag(
            "auth_tokens_file",
            "File of clients' tokens (nereid token), read again when it changes; without one, none is asked "
            "for.",
            parse=parsers.tokens_file,
        ),
    ] = ""
    audit_log: A[
        str,
        Flag(
            "audit_log",
            "File of a JSON line for each management call; by default the log, if tokens are asked for or a "
            "port is open to the network.",
            parse=parsers.audit_log,
        ),
    ] = ""


class RepositorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Model repositories and which of their models are loaded."""

    paths: A[
        tuple[str, ...],
        Flag("model_repository", "Directory of models, or s3://, gs://, as://, oss://; may be repeated."),
    ] = ()
    exit_on_error: A[bool, Flag("exit_on_error", "Exit when a model fails to load at startup.")] = True
    disable_auto_complete_config: A[
        bool, Flag("disable_auto_complete_config", "Use model configurations as they are written.", bare=True)
    ] = False
    strict_readiness: A[bool, Flag("strict_readiness", "Be ready only while every model is ready.")] = True
    control_mode: A[
        str,
        Flag(
            "model_control_mode",
            "none: load everything at startup; poll: follow changes on disk; explicit: load on request.",
            choices=("none", "poll", "explicit"),
        ),
    ] = "none"
    poll_interval_s: A[
        int, Flag("repository_poll_secs", "Seconds between polls of the repository; 0 for no polls.", low=0)
    ] = 15
    startup_models: A[
        tuple[str, ...], Flag("load_model", "Model to load at startup; may be repeated; '*' for all.")
    ] = ()
    config_name: A[
        str,
        Flag(
            "model_config_name",
            "Use a model's configs/NAME.pbtxt if it exists.",
            parse=parsers.config_name,
        ),
    ] = ""
    allow_upload: A[bool, Flag("allow_model_upload", "Accept model files sent in load requests.", NEREID)] = (
        True
    )
    allow_partial_load: A[
        bool, Flag("allow_partial_load", "Serve the versions of a model that load when others fail.", NEREID)
    ] = False
    load_threads: A[int, Flag("model_load_thread_count", "Models loaded at the same time.", low=1)] = 4
    load_retries: A[int, Flag("model_load_retry_count", "Retries of a model that fails to load.", low=0)] = 0
    namespacing: A[
        bool, Flag("model_namespacing", "Allow models of the same name in different repositories.")
    ] = False


class IngressSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Ingress replicas and the limits of each."""

    replicas: A[
        int, Flag("ingress_replicas", "Processes that listen for requests, on each node.", low=1, high=100)
    ] = 1
    max_connections: A[
        int,
        Flag("max_connections", "Maximum open client connections of a protocol, per ingress replica.", low=1),
    ] = 4096
    min_client_rate: A[
        int,
        Flag(
            "min_client_rate",
            "Minimum bytes per second, over a minute, at which a client sends a request and reads what waits "
            "for it; 0 to demand only some progress.",
            low=0,
        ),
    ] = 4096
    max_pending_requests: A[
        int, Flag("max_pending_requests", "Maximum requests in flight, per ingress replica.", low=1)
    ] = 65536
    max_pending_bytes: A[
        int, Flag("max_pending_bytes", "Maximum bytes of requests in flight, per ingress replica.", low=1)
    ] = 4096 * MIB
    max_queue_s: A[
        float,
        Flag(
            "max_queue_secs",
            "Maximum seconds that a request may be expected to wait for its model; 0 for no limit. A model's "
            "parameter of this name comes first.",
            low=0,
        ),
    ] = 0
    learn_max_queue: A[
        bool,
        Flag(
            "learn_max_queue",
            "While most clients leave unanswered, refuse requests that would wait longer than they do.",
        ),
    ] = True
    default_deadline_s: A[
        float,
        Flag(
            "default_deadline_secs",
            "Seconds until a request fails whose client set no deadline; 0 for never.",
            low=0,
        ),
    ] = 0
    send_buffer_bytes: A[
        int,
        Flag(
            "max_unsent_bytes",
            "Maximum response bytes buffered for slow clients, per ingress replica.",
            low=1,
        ),
    ] = 4096 * MIB


class MetricsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Prometheus metrics."""

    enabled: A[bool, Flag("allow_metrics", "Serve Prometheus metrics.")] = True
    gpu: A[bool, Flag("allow_gpu_metrics", "Report metrics of GPUs.")] = True
    cpu: A[bool, Flag("allow_cpu_metrics", "Report metrics of processors and memory.")] = True
    address: A[str, Flag("metrics_address", "Address to listen on; by default that of HTTP.")] = ""
    port: A[int, Flag("metrics_port", "Port for metrics; 0 for a free one.", low=0, high=65535)] = 8002
    interval_ms: A[
        float, Flag("metrics_interval_ms", "Milliseconds between measurements of the machine.", low=1)
    ] = 2000
    config: A[
        MetricsConfig,
        Flag("metrics_config", "KEY=VALUE; may be repeated.", parse=parsers.metrics_config, repeats=True),
    ] = MetricsConfig()


class BackendSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Backends and repository agents."""

    max_execution_s: A[
        float,
        Flag(
            "max_execution_secs",
            "Seconds after which an execution fails and its process is replaced; 0 for no limit.",
            NEREID,
            low=0,
        ),
    ] = 0.0
    directory: A[str, Flag("backend_directory", "Directory of custom backends.")] = (
        "/opt/tritonserver/backends"
    )
    config: A[
        parsers.Named,
        Flag(
            "backend_config",
            "[BACKEND,]KEY=VALUE; may be repeated.",
            parse=parsers.backend_config,
            repeats=True,
        ),
    ] = {}
    repoagent_directory: A[
        str, Flag("repoagent_directory", "Directory of repository agents.", unused=True)
    ] = ""


class RateLimiterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The rate limiter."""

    mode: A[str, Flag("rate_limit", "How to choose instances.", choices=("off", "execution_count"))] = "off"
    resources: A[
        ResourceCounts,
        Flag(
            "rate_limit_resource",
            "RESOURCE:COUNT[:DEVICE]; may be repeated.",
            parse=parse_resources,
            repeats=True,
        ),
    ] = {}

    @property
    def limits(self) -> ResourceCounts | None:
        """Resources by device and name; None without a rate limiter."""
        return None if self.mode == "off" else self.resources


class DeviceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Shared memory of clients, processors and GPUs."""

    allow_client_shm: A[bool, Flag("allow_client_shm", "Let clients register shared memory.")] = False
    host_policies: A[
        parsers.Named,
        Flag("host_policy", "POLICY,KEY=VALUE; may be repeated.", parse=parsers.host_policies, repeats=True),
    ] = {}
    model_load_gpu_limit: A[
        tuple[str, ...],
        Flag(
            "model_load_gpu_limit",
            "DEVICE:FRACTION of GPU memory in use above which no model loads.",
            pair=":",
            unused=True,
        ),
    ] = ()


class ModelStoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Loading of models, and the copies of remote ones."""

    load_timeout_s: A[int, Flag("model_load_timeout_secs", "Seconds to load a model.", low=1)] = 600
    cache_directory: A[
        str, Flag("model_cache_directory", "Directory for copies of remote models, on every node.")
    ] = ""
    cache_bytes: A[
        int, Flag("model_cache_bytes", "Maximum bytes of copies of remote models on a node.", low=0)
    ] = 102400 * MIB
    override_bytes: A[
        int, Flag("model_override_bytes", "Maximum bytes of model files sent in load requests.", low=0)
    ] = 1024 * MIB
    config_override_bytes: A[
        int,
        Flag(
            "model_config_override_bytes",
            "Maximum bytes of configurations sent in load requests, of all models that are served with one.",
            low=0,
        ),
    ] = 64 * MIB
    state_directory: A[
        str,
        Flag(
            "state_directory",
            "Directory that outlives restarts of the machine, for rollouts and rejected versions; by default "
            "$STATE_DIRECTORY, $XDG_STATE_HOME/nereid or ~/.local/state/nereid.",
            parse=parsers.absolute,
        ),
    ] = ""


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Every setting, validated and complete."""

    server: A[GeneralSettings, Section("Server")] = GeneralSettings()
    log: A[LogConfig, Section("Logging", LogFlags, _log_config)] = LogConfig()
    repository: A[RepositorySettings, Section("Model repository")] = RepositorySettings()
    access: A[AccessSettings, Section(NEREID)] = AccessSettings()
    ingress: A[IngressSettings, Section(NEREID)] = IngressSettings()
    http: A[HttpSettings, Section("HTTP")] = HttpSettings()
    grpc: A[GrpcSettings, Section("gRPC")] = GrpcSettings()
    metrics: A[MetricsSettings, Section("Metrics")] = MetricsSettings()
    trace: A[
        TraceSetting,
        Flag(
            "trace_config",
            "[MODE,]KEY=VALUE; may be repeated.",
            "Tracing",
            parse=parsers.trace_config,
            repeats=True,
        ),
    ] = TraceSetting()
    backends: A[BackendSettings, Section("Backends")] = BackendSettings()
    cache: A[
        parsers.Named,
        Flag(
            "cache_config",
            "local,size=BYTES or redis,host=NAME,...",
            "Response cache",
            parse=parsers.cache_config,
            repeats=True,
        ),
    ] = {}
    rate_limiter: A[RateLimiterSettings, Section("Rate limiter")] = RateLimiterSettings()
    devices: A[DeviceSettings, Section("Memory and devices")] = DeviceSettings()
    clouds: A[CloudSettings, Section("Clouds", combine=with_environment)] = CloudSettings()
    openai: A[OpenAISettings, Section(NEREID)] = OpenAISettings()
    console: A[ConsoleSettings, Section(NEREID)] = ConsoleSettings()
    cluster: A[ClusterSettings, Section(NEREID)] = ClusterSettings()
    model_store: A[ModelStoreSettings, Section(NEREID)] = ModelStoreSettings()
    residency: A[ResidencySettings, Section(NEREID)] = ResidencySettings()
    tape: A[TapeSettings, Section(NEREID)] = TapeSettings()
    cost: A[CostSettings, Section(NEREID)] = CostSettings()

    warnings: tuple[str, ...] = ()
    """Messages for the user about flags given; not a setting."""

    def plain_fronts(self) -> dict[str, HttpSettings]:
        """Return the other fronts that listen at the address of HTTP, by name."""
        return {**self.clouds.fronts(self.http), "OpenAI": self.openai.listener(self.http)}

    def open_fronts(self) -> dict[str, HttpSettings | GrpcSettings]:
        """Return the fronts that the network reaches, by the flags of their addresses."""
        plain = (front for front in self.plain_fronts().values() if front.enabled)
        fronts: dict[str, HttpSettings | GrpcSettings] = {"http": next(plain, self.http), "grpc": self.grpc}
        return {n: front for n, front in fronts.items() if front.enabled and not is_loopback(front.address)}

    @property
    def audits(self) -> bool:
        """Whether management calls are recorded."""
        return bool(self.access.audit_log or self.access.tokens_file or self.open_fronts())


SETTINGS: Final = table(ServerSettings)
"""The flags by name."""
