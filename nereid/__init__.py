"""Nereid's public interface: the server as a Serve application, and its models for other programs.

Importing it loads nothing of the server, whose packages are called `app`, `backends` and `deployments`: a
program may have packages of these names itself.
"""

from typing import TYPE_CHECKING, Any

from nereid.errors import InferError
from nereid.handle import ModelHandle, model_handle
from nereid.internals import load_internals
from nereid.offline import batch

if TYPE_CHECKING:  # the command reads its flags, and sets Ray's environment, before Ray is imported
    from ray.serve.deployment import Application

__all__ = ["InferError", "ModelHandle", "batch", "build", "model_handle"]


def build(args: dict[str, Any]) -> "Application":
    """Return the server as a Serve application: `import_path: nereid:build` in a Serve configuration.

    Args:
        args: tritonserver's flags with underscores, such as `{"model_repository": "/models"}`.

    Raises:
        SettingsError: an unknown or contradictory setting, in one line.
    """
    load_internals()
    from nereid.server.main import build

    return build(args)
