"""The options of the in-process API, and the settings of a server that they mean."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, cast

from app.settings.load import from_args
from app.settings.settings import ServerSettings
from nereid.inprocess.errors import InternalError, InvalidArgumentError
from nereid.inprocess.kinds import InstanceGroupKind, LogFormat, ModelControlMode, RateLimitMode
from nereid.inprocess.logs import LogCallback

_CHECKED: Final = (str, int, float, bool)
"""Types of options that Triton's binding checks when the server starts."""
_NUMBERS: Final = (int, float)


@dataclass(slots=True)
class RateLimiterResource:
    """How many of a resource a device has."""

    name: str
    count: int
    device: int


@dataclass(slots=True)
class ModelLoadDeviceLimit:
    """The share of a device's memory above which no model loads; accepted, without effect."""

    kind: InstanceGroupKind
    device: int
    fraction: float


@dataclass(slots=True)
class Options:
    """How a server is started; names and defaults are those of Triton's in-process API.

    What has no counterpart here is accepted and without effect: memory pools, threads of the buffer manager,
    peer access, the compute capability, directories of caches and agents, and limits of devices.
    `log_callback` gets the records of the log, of this process, in place of the file or the console.
    """

    model_repository: str | list[str] = field(default_factory=list)
    server_id: str = "triton"
    model_control_mode: ModelControlMode = ModelControlMode.NONE
    startup_models: list[str] = field(default_factory=list)
    strict_model_config: bool = False
    rate_limiter_mode: RateLimitMode = RateLimitMode.OFF
    rate_limiter_resources: list[RateLimiterResource] = field(default_factory=list)
    pinned_memory_pool_size: int = 1 << 28
    cuda_memory_pool_sizes: dict[int, int] = field(default_factory=dict)
    cache_config: dict[str, dict[str, Any]] = field(default_factory=dict)
    cache_directory: str = "/opt/tritonserver/caches"
    min_supported_compute_capability: float = 6.0
    exit_on_error: bool = True
    strict_readiness: bool = True
    exit_timeout: int = 30
    buffer_manager_thread_count: int = 0
    model_load_thread_count: int = 4
    model_load_retry_count: int = 0
    model_namespacing: bool = False
    enable_peer_access: bool = True
    log_file: str | None = None
    log_info: bool = False
    log_warn: bool = False
    log_error: bool = False
    log_format: LogFormat = LogFormat.DEFAULT
    log_verbose: int = 0
    metrics: bool = True
    gpu_metrics: bool = True
    cpu_metrics: bool = True
    metrics_interval: int = 2000
    backend_directory: str = "/opt/tritonserver/backends"
    repo_agent_directory: str = "/opt/tritonserver/repoagents"
    model_load_device_limits: list[ModelLoadDeviceLimit] = field(default_factory=list)
    backend_configuration: dict[str, dict[str, str]] = field(default_factory=dict)
    host_policies: dict[str, dict[str, str]] = field(default_factory=dict)
    metrics_configuration: dict[str, dict[str, str]] = field(default_factory=dict)
    log_callback: LogCallback | None = None

    def settings(self) -> ServerSettings:
        """Return the settings of a server.

        Raises:
            InvalidArgumentError: no repository is given.
            InternalError: a repository does not exist.
            TypeError: a value of another type.
            SettingsError: a value that cannot be used.
        """
        self._check_types()
        if not self.model_repository:
            raise InvalidArgumentError("Model repository must be specified.")
        paths = (
            [self.model_repository] if isinstance(self.model_repository, str) else [*self.model_repository]
        )
        for path in paths if self.exit_on_error else ():
            if "://" not in path and not Path(path).exists():
                raise InternalError(f"failed to stat file {path}")
        return from_args({**self._server(paths), **self._logging(), **self._lists()})

    def _check_types(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            allowed = _NUMBERS if each.type is float else each.type
            if each.type in _CHECKED and not isinstance(value, cast("type", allowed)):
                raise TypeError(f"{each.name} must be {cast('type', each.type).__name__}, not {value!r}")

    def _server(self, paths: list[str]) -> dict[str, object]:
        modes = {ModelControlMode.NONE: "none", ModelControlMode.POLL: "poll"}
        execution_count = self.rate_limiter_mode is RateLimitMode.EXEC_COUNT
        return {
            "model_repository": paths,
            "id": self.server_id,
            "model_control_mode": modes.get(self.model_control_mode, "explicit"),
            "load_model": self.startup_models,
            "disable_auto_complete_config": self.strict_model_config,
            "rate_limit": "execution_count" if execution_count else "off",
            "exit_on_error": self.exit_on_error,
            "strict_readiness": self.strict_readiness,
            "exit_timeout_secs": self.exit_timeout,
            "model_load_thread_count": self.model_load_thread_count,
            "model_load_retry_count": self.model_load_retry_count,
            "model_namespacing": self.model_namespacing,
            "backend_directory": self.backend_directory,
            "allow_metrics": self.metrics,
            "allow_gpu_metrics": self.gpu_metrics,
            "allow_cpu_metrics": self.cpu_metrics,
            "metrics_interval_ms": self.metrics_interval,
        }

    def _logging(self) -> dict[str, object]:
        """Return the flags of the log: a level brings those above it."""
        info = self.log_info or self.log_verbose > 0
        warn = self.log_warn or info
        return {
            "log_verbose": self.log_verbose,
            "log_info": info,
            "log_warning": warn,
            "log_error": self.log_error or warn,
            "log_format": self.log_format.name.replace("DEFAULT", "default"),
            "log_file": self.log_file or "",
        }

    def _lists(self) -> dict[str, object]:
        caches = [
            f"{name},{key}={value}"
            for name, values in self.cache_config.items()
            for key, value in values.items()
        ]
        resources = [f"{each.name}:{each.count}:{each.device}" for each in self.rate_limiter_resources]
        return {
            "cache_config": caches,
            "rate_limit_resource": resources,
            "backend_config": _pairs(self.backend_configuration),
            "host_policy": _pairs(self.host_policies),
            "metrics_config": [pair.removeprefix(",") for pair in _pairs(self.metrics_configuration)],
        }


def _pairs(named: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return `name,key=value` for each value of each name."""
    return [f"{name},{key}={value}" for name, values in named.items() for key, value in values.items()]
