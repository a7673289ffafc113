"""What Serve's controller calls when it starts, by a name under which any Ray worker can import it."""

from importlib import import_module
from typing import Final

from nereid.internals import load_internals

CALLBACK: Final = f"{__name__}:prepare"
"""The value of RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH."""


def prepare() -> None:
    """Prepare the controller's process."""
    load_internals()
    applies = import_module("app.ray_adapter.local.changes").applies
    if applies("replica-classes"):
        import_module("app.ray_adapter.serve.replica_classes").share_replica_classes()
    if applies("controller-pace"):
        import_module("app.ray_adapter.serve.controller_pace").pace_controller()
    if applies("spread"):
        import_module("app.ray_adapter.serve.placement").spread_replicas()
