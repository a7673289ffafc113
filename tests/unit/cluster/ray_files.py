"""What Ray makes of the files of `cluster/`."""

import shlex
from typing import Any

from ray.serve.schema import ServeDeploySchema

from tests.server import ROOT


def ray_environment() -> dict[str, str]:
    """The variables of `cluster/ray.env`."""
    lines = shlex.split((ROOT / "cluster/ray.env").read_text(), comments=True)
    return dict(line.split("=", 1) for line in lines)


def pod_environment(drain_s: int) -> dict[str, str]:
    """The variables of a Pod of a Ray cluster; KubeRay sets the mode of authentication."""
    own = {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": str(drain_s)}
    return {name: value for name, value in ray_environment().items() if name != "RAY_AUTH_MODE"} | own


def deployed(config: Any) -> Any:
    """What Serve reads of a configuration: it drops keys that it does not know, without a word."""
    return ServeDeploySchema.model_validate(config).model_dump(mode="json", exclude_unset=True)
