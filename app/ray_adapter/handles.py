"""Handles of Serve deployments that belong to their caller alone.

`serve.get_deployment_handle` of Ray 2.60 caches its handles and also returns those that were shut down;
handles that will be shut down are therefore made directly.
"""

from typing import Any

from ray.serve.handle import DeploymentHandle

from app.core.identifiers import deployment_name


def new_handle(deployment: str, application: str) -> DeploymentHandle[Any]:
    """Make a handle that connects to Serve at its first call, or by `connect`; the caller shuts it down."""
    return DeploymentHandle(deployment_name(deployment), application)


def connect(handle: DeploymentHandle[Any]) -> None:
    """Connect a handle without a request: its request router then follows the replicas.

    Blocks, for the controller is asked. In Ray 2.60 `DeploymentHandle._init` does it, which fails when the
    handle is connected already.
    """
    handle._init()  # type: ignore[no-untyped-call]


def open_handle(deployment: str, application: str) -> DeploymentHandle[Any]:
    """Make a handle and connect it; see `connect`."""
    handle = new_handle(deployment, application)
    connect(handle)
    return handle
