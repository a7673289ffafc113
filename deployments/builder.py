"""From a model version to its Serve application; with `app/main.py` the only place that binds deployments."""

from pathlib import Path
from typing import Any, cast

import msgspec
from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.deployment import Application
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import invalid_arg
from backends import process_per_instance
from deployments.spec import ModelSpec
from nereid.deployments import ModelVersion

ROUTER = "app.routing.serve_router:DirectRouter"

_QUEUED = 1 << 20
"""Serve takes a new constructor argument, for replicas to come, only along with an option that has changed.

This one concerns calls through handles alone, and no replica is restarted, or taken out of the list of those
that run, when it changes.
"""

ROUTER_CONFIG = RequestRouterConfig(request_router_class=cast(Any, ROUTER))

RAY_RESOURCES = "ray_resources"

QUIET = {"enable_access_log": False, "log_level": "WARNING"}
"""Serve's own log of a replica: what passes through its handles is control traffic, not requests."""


def replica_count(config: mc.ModelConfig, backends: Path | None = None) -> int:
    """A Python model is a process an instance; any other model runs its instances as threads of one."""
    if not process_per_instance(config.backend, backends):
        return 1
    count: int = sum(
        group.count * max(1, len(group.gpus)) for group in config.instance_group if not group.passive
    )
    return max(1, count)


def ray_resources(config: mc.ModelConfig) -> dict[str, float]:
    """Custom Ray resources a replica needs, from the parameter `ray_resources` (`{"worker": 0.01}`).

    This is how a model is placed on some nodes of a cluster; Triton has no such parameter.

    Raises:
        InferError: INVALID_ARG when the value is not a JSON object of numbers.
    """
    if RAY_RESOURCES not in config.parameters:
        return {}
    text = config.parameters[RAY_RESOURCES].string_value
    try:
        return msgspec.json.decode(text, type=dict[str, float])
    except msgspec.DecodeError as error:
        raise invalid_arg(
            f"model '{config.name}': parameter '{RAY_RESOURCES}' must be a JSON object of numbers, "
            f"such as {{\"worker\": 0.01}}, got '{text}': {error}"
        ) from error


def options(spec: ModelSpec) -> dict[str, Any]:
    """The Serve options of a model version's deployment.

    `num_cpus` is 0: as in Triton, how many models share the processors is the operator's decision, and
    Ray would refuse to place what it counts as too many. A replacement starts before the old replica stops
    (`max_surge_percent`), and a constructor that dies is not tried again: the manager reports why. All specs
    of an application are one version to Serve: they differ in the number of instances only.
    """
    config = mc.ModelConfig.FromString(spec.config)
    return {
        "name": spec.name,
        "num_replicas": replica_count(config, spec.backend_path),
        "ray_actor_options": {"num_cpus": 0, "resources": ray_resources(config)},
        "request_router_config": ROUTER_CONFIG,
        "max_constructor_retry_count": 1,
        "logging_config": QUIET,
        "max_surge_percent": 100,
        "max_ongoing_requests": 1024,
        "max_queued_requests": _QUEUED + spec.revision,
        "health_check_period_s": 1,
        "health_check_timeout_s": 10,
        "graceful_shutdown_wait_loop_s": 0.1,
        "graceful_shutdown_timeout_s": 90,
    }


def build(spec: ModelSpec) -> Application:
    """The application of one model version; not to be called by two threads at a time."""
    deployment: Any = serve.deployment(ModelVersion)  # untyped in Ray
    versioned = deployment.options(**options(spec), version="1", _internal=True)
    application: Application = versioned.bind(msgspec.msgpack.encode(spec))
    return application
