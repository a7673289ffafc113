"""The composition root: makes the Serve application from the settings."""

import secrets
import shutil
from collections.abc import Collection
from typing import Any

from ray import serve
from ray.serve.deployment import Application

import nereid.deployments as classes
from app.core.installed.installation import PROGRAM
from app.ingress.client_memory.region_files import region_directory
from app.ray_adapter.node import NODE_ADDRESS
from app.ray_adapter.serve.handles import connect
from app.routing.table import RoutingTable
from app.routing.table_bytes import decode_table
from app.settings.load import from_args
from app.settings.settings import ServerSettings
from deployments import spec
from deployments.builder import HEALTH_CHECKS, QUIET, ROUTER_CONFIG
from deployments.manager.serve.applications import is_model_application
from deployments.stand_in import import_deployments_from, stand_in

APPLICATION = PROGRAM
MANAGER = spec.MANAGER
INGRESS = "ingress"


def build(args: dict[str, Any]) -> Application:
    """Make the application that `serve_config.yaml` names.

    Args:
        args: tritonserver's flags with underscores.

    Raises:
        SettingsError: an unknown or contradictory setting, in one line.
    """
    return compose(from_args(args), new_key())


def new_key() -> bytes:
    """Return a key for the channels of a server, which survives a restart of its processes."""
    return secrets.token_bytes(32)


def compose(settings: ServerSettings, key: bytes) -> Application:
    """Bind the repository manager and the ingress that follows it, with a `new_key`."""
    import_deployments_from(classes.__name__)
    manager = _deployment(
        stand_in("RepositoryManager"),
        name=MANAGER,
        num_replicas=1,
        max_ongoing_requests=4096,
        health_check_timeout_s=settings.cluster.replica_timeout_s / HEALTH_CHECKS,
        graceful_shutdown_timeout_s=5,
    )
    ingress = _deployment(
        stand_in("Ingress"),
        name=INGRESS,
        request_router_config=ROUTER_CONFIG,
        num_replicas=settings.ingress.replicas,  # of one node; `deployments/manager/serve/nodes.py` scales it
        max_ongoing_requests=4096,  # ensembles called by Serve handles; requests of clients do not pass Serve
        health_check_timeout_s=settings.cluster.replica_timeout_s / HEALTH_CHECKS,
        graceful_shutdown_timeout_s=settings.server.exit_timeout_s + 10,
        **_placement(settings),
    )
    writer = manager.bind(settings, key, (APPLICATION, INGRESS))
    application: Application = ingress.bind(settings, key, writer)
    return application


def _placement(settings: ServerSettings) -> dict[str, Any]:
    """Return the options that place ingresses: so many on each node of a cluster, or on the only node.

    In a cluster no more of them may be on a node, so that an update stops one before it starts another; on
    the only node, new ones start beside the old.
    """
    if settings.cluster.channel_address == NODE_ADDRESS:
        return {"max_replicas_per_node": settings.ingress.replicas}
    return {"max_surge_percent": 100}


def is_ours(application: str, deployments: Collection[str]) -> bool:
    """Return whether an application with these deployments is the server's, or one of its models."""
    return application == APPLICATION or is_model_application(application, deployments)


def remove_files(key: bytes) -> None:
    """Remove what a server leaves on this node that was killed: shared memory that clients had registered."""
    shutil.rmtree(region_directory(key), ignore_errors=True)


def routing_table() -> RoutingTable:
    """Return the present table of the repository manager of this cluster; blocks.

    Raises:
        RayServeException: the application does not run.
    """
    manager: Any = serve.get_deployment_handle(MANAGER, APPLICATION)
    connect(manager)
    return decode_table(manager.status.remote().result())


def _deployment(kind: type, **options: Any) -> Any:
    """Make a deployment of the server itself: no reserved processor, a health check every second."""
    deployment: Any = serve.deployment(kind)  # untyped in Ray
    return deployment.options(
        ray_actor_options={"num_cpus": 0},
        logging_config=QUIET,
        health_check_period_s=1,
        graceful_shutdown_wait_loop_s=0.1,
        **options,
    )
