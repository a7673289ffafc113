"""Handles of Serve deployments that belong to their caller alone.

`serve.get_deployment_handle` of Ray 2.60 caches its handles and also returns those that were shut down;
handles that will be shut down are therefore made directly.
"""

from typing import Any

from ray.serve.handle import DeploymentHandle

from app.core.identifiers import deployment_name


def new_handle(deployment: str, application: str) -> DeploymentHandle[Any]:
    """Make a handle that the caller connects to Serve (`connect`) before its first call, and shuts down."""
    return DeploymentHandle(deployment_name(deployment), application)


def connect(handle: DeploymentHandle[Any]) -> None:
    """Connect a handle without a request: its request router then follows the replicas.

    Blocks, for the controller is asked. In Ray 2.60 `DeploymentHandle._init` does it, which fails when the
    handle is connected already. Calls are answered whole from then on. By default each is a stream, whose end
    blocks the event loop of the replica until the caller has the answer (`execute_streaming_generator_async`
    in ray/_raylet.pyx): one that answers a node which was cut off answers nobody else, nor Serve's health
    checks, for half a minute or more. What is lost is the refusal beyond `max_ongoing_requests`.
    """
    if not handle.is_initialized:
        handle._init()  # type: ignore[no-untyped-call]
    router: Any = handle._router
    router._asyncio_router._enable_strict_max_ongoing_requests = False


def open_handle(deployment: str, application: str) -> DeploymentHandle[Any]:
    """Make a handle and connect it; see `connect`."""
    handle = new_handle(deployment, application)
    connect(handle)
    return handle
