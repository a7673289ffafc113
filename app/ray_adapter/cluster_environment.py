"""The environment in which Ray's own commands reach the cluster that this process is connected to."""

import os
from pathlib import Path
from typing import Any, Final

_INHERITED: Final = ("RAY_AUTH_MODE", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")
"""What decides in Ray 2.60 whether a process is let in, and which address it takes for its own."""


def cluster_addresses() -> tuple[str, str]:
    """Return the address of the cluster and the URL of its dashboard, "" without one."""
    import ray
    from ray._private import worker

    private: Any = worker  # untyped in Ray
    dashboard = private.get_dashboard_url()
    return str(ray.get_runtime_context().gcs_address), f"http://{dashboard}" if dashboard else ""


def cluster_environment() -> dict[str, str]:
    """Return the variables that `ray status`, `serve status` and a driver need; no secret is among them."""
    address, dashboard = cluster_addresses()
    found = {"RAY_ADDRESS": address}
    found |= {name: os.environ[name] for name in _INHERITED if name in os.environ}
    if found.get("RAY_AUTH_MODE") == "token" and "RAY_AUTH_TOKEN" not in os.environ:
        default = str(Path.home() / ".ray" / "auth_token")
        found["RAY_AUTH_TOKEN_PATH"] = os.environ.get("RAY_AUTH_TOKEN_PATH", default)
    if dashboard:
        found["RAY_DASHBOARD_ADDRESS"] = dashboard
    return found
