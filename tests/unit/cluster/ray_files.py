"""What Ray makes of the files of `cluster/`."""

import shlex
from typing import Any

from ray.serve.schema import ServeDeploySchema

from tests.server import ROOT


def ray_environment() -> dict[str, str]:
    """The variables of `cluster/ray.env`."""
    lines = shlex.split((ROOT / "cluster/ray.env").read_text(), comments=True)
    return dict(line.split("=", 1) for line in lines)


def deployed(config: Any) -> Any:
    """What Serve reads of a configuration: it drops keys that it does not know, without a word."""
    return ServeDeploySchema.model_validate(config).model_dump(mode="json", exclude_unset=True)
