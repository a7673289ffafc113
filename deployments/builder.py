"""Makes the Serve application of a model version; `nereid/server/main.py` alone binds deployments, too."""

from typing import Any, cast

import msgspec
from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.deployment import Application
from tritonclient.grpc import model_config_pb2 as mc

from app.core.identifiers import deployment_name
from app.ray_adapter.serve.applications import versioned
from app.ray_adapter.serve.placement import placeable
from deployments.parameters import ReplicaParameters, replica_parameters
from deployments.spec import ModelSpec
from deployments.stand_in import stand_in

ROUTER = "app.ray_adapter.serve.router:DirectRouter"

_QUEUED = 1 << 20
"""Base of `max_queued_requests`, which grows with each change of a running application's instances.

Serve applies a new constructor argument, to replicas it starts later, only along with a changed option. This
option concerns only calls through handles, and a change neither restarts nor unlists a running replica.
"""

ROUTER_CONFIG = RequestRouterConfig(request_router_class=cast(Any, ROUTER))

HEALTH_CHECKS = 3
"""Failed health checks in a row after which Serve replaces a replica (a constant of Ray 2.60)."""

QUIET = {"enable_access_log": False, "log_level": "WARNING"}
"""Serve's logging of a replica: calls through its handles are control traffic, not requests of clients."""


def options(spec: ModelSpec) -> dict[str, Any]:
    """Return the Serve options of a model version's deployment."""
    parameters = replica_parameters(mc.ModelConfig.FromString(spec.config))
    return {
        "name": deployment_name(spec.name),
        "num_replicas": parameters.started(spec.replicas, spec.percent),
        "ray_actor_options": _actor_options(parameters),
        "request_router_config": ROUTER_CONFIG,
        "max_constructor_retry_count": 1,  # the manager reports the failure
        "logging_config": QUIET,
        "max_surge_percent": 100,  # a replacement starts before the old replica stops
        "max_ongoing_requests": 1024,
        "max_queued_requests": _QUEUED + spec.revision,
        "health_check_period_s": 1,
        "health_check_timeout_s": spec.server.transport.peer_timeout / HEALTH_CHECKS,
        "graceful_shutdown_wait_loop_s": 0.1,
        "graceful_shutdown_timeout_s": 90,
    }


def _actor_options(parameters: ReplicaParameters) -> dict[str, Any]:
    # As in Triton, the operator decides how many models share the processors; Ray would refuse some. It adds
    # nodes only for models that say what they need.
    resources = parameters.resources | placeable(parameters.packed)
    reserved: dict[str, Any] = {"num_cpus": parameters.num_cpus, "resources": resources}
    if parameters.memory_bytes:
        reserved["memory"] = parameters.memory_bytes
    return reserved


def build(spec: ModelSpec) -> Application:
    """Make the application of one model version; called by `run_application`, one at a time.

    All specs of an application have one version to Serve: they differ in their instances only, whose change
    restarts no replica.
    """
    deployment: Any = serve.deployment(stand_in("ModelVersion"))  # untyped in Ray
    application: Application = versioned(deployment, "1", options(spec)).bind(msgspec.msgpack.encode(spec))
    return application
