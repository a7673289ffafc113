"""Makes the Serve application of a model version; only this module and `app/main.py` bind deployments."""

from typing import Any, cast

import msgspec
from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.deployment import Application
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import invalid_arg
from app.ray_adapter.applications import versioned
from deployments.spec import ModelSpec
from nereid.deployments import ModelVersion

ROUTER = "app.ray_adapter.serve_router:DirectRouter"

_QUEUED = 1 << 20
"""Base of `max_queued_requests`, which grows with each change of a running application's instances.

Serve applies a new constructor argument, to replicas it starts later, only along with a changed option. This
option concerns only calls through handles, and a change neither restarts nor unlists a running replica.
"""

ROUTER_CONFIG = RequestRouterConfig(request_router_class=cast(Any, ROUTER))

RAY_RESOURCES = "ray_resources"

RAY_REPLICAS = "ray_replicas"

HEALTH_CHECKS = 3
"""Failed health checks in a row after which Serve replaces a replica (a constant of Ray 2.60)."""

QUIET = {"enable_access_log": False, "log_level": "WARNING"}
"""Serve's logging of a replica: calls through its handles are control traffic, not requests of clients."""


def replica_count(config: mc.ModelConfig) -> int:
    """Return the number of replicas, from the parameter `ray_replicas` ("3"); by default one.

    Each has all instances of the configuration, and Serve spreads them over the nodes of a cluster.

    Raises:
        InferError: INVALID_ARG when the value is not a positive number.
    """
    if RAY_REPLICAS not in config.parameters:
        return 1
    text = config.parameters[RAY_REPLICAS].string_value
    if not text.isdecimal() or not int(text):
        raise invalid_arg(
            f"model '{config.name}': parameter '{RAY_REPLICAS}' must be a positive number, got '{text}'"
        )
    return int(text)


def ray_resources(config: mc.ModelConfig) -> dict[str, float]:
    """Return the custom Ray resources of a replica, from the parameter `ray_resources` (`{"worker": 0.01}`).

    They place a model on certain nodes of a cluster; Triton has no such parameter.

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
    """Return the Serve options of a model version's deployment."""
    config = mc.ModelConfig.FromString(spec.config)
    return {
        "name": spec.name,
        "num_replicas": replica_count(config),
        # As in Triton, the operator decides how many models share the processors; Ray would refuse some.
        "ray_actor_options": {"num_cpus": 0, "resources": ray_resources(config)},
        "request_router_config": ROUTER_CONFIG,
        "max_constructor_retry_count": 1,  # the manager reports the failure
        "logging_config": QUIET,
        "max_surge_percent": 100,  # a replacement starts before the old replica stops
        "max_ongoing_requests": 1024,
        "max_queued_requests": _QUEUED + spec.revision,
        "health_check_period_s": 1,
        "health_check_timeout_s": spec.transport.peer_timeout / HEALTH_CHECKS,
        "graceful_shutdown_wait_loop_s": 0.1,
        "graceful_shutdown_timeout_s": 90,
    }


def build(spec: ModelSpec) -> Application:
    """Make the application of one model version; called by `run_application`, one at a time.

    All specs of an application have one version to Serve: they differ in their instances only, whose change
    restarts no replica.
    """
    deployment: Any = serve.deployment(ModelVersion)  # untyped in Ray
    application: Application = versioned(deployment, "1", options(spec)).bind(msgspec.msgpack.encode(spec))
    return application
