"""From a model version to its Serve application; with `app/main.py` the only place that binds deployments."""

from typing import Any, cast

import msgspec
from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.deployment import Application
from tritonclient.grpc import model_config_pb2 as mc

from deployments.model_version import ModelVersion
from deployments.spec import ModelSpec

ROUTER = "app.routing.serve_router:DirectRouter"

QUIET = {"enable_access_log": False, "log_level": "WARNING"}
"""Serve's own log of a replica: what passes through its handles is control traffic, not requests."""


def replica_count(config: mc.ModelConfig) -> int:
    """A Python model is a process an instance; any other model runs its instances as threads of one."""
    if config.backend != "python":
        return 1
    count: int = sum(group.count * max(1, len(group.gpus)) for group in config.instance_group)
    return max(1, count)


def options(spec: ModelSpec) -> dict[str, Any]:
    """The Serve options of a model version's deployment.

    `num_cpus` is 0: as in Triton, how many models share the processors is the operator's decision, and
    Ray would refuse to place what it counts as too many. A replacement starts before the old replica stops
    (`max_surge_percent`), and a constructor that dies is not tried again: the manager reports why.
    """
    config = mc.ModelConfig.FromString(spec.config)
    return {
        "name": spec.name,
        "num_replicas": replica_count(config),
        "ray_actor_options": {"num_cpus": 0},
        "request_router_config": RequestRouterConfig(request_router_class=cast(Any, ROUTER)),
        "max_constructor_retry_count": 1,
        "logging_config": QUIET,
        "max_surge_percent": 100,
        "max_ongoing_requests": 1024,
        "health_check_period_s": 1,
        "health_check_timeout_s": 10,
        "graceful_shutdown_wait_loop_s": 0.1,
        "graceful_shutdown_timeout_s": 90,
    }


def build(spec: ModelSpec) -> Application:
    """The application of one model version."""
    deployment: Any = serve.deployment(ModelVersion)
    application: Application = deployment.options(**options(spec)).bind(msgspec.msgpack.encode(spec))
    return application
