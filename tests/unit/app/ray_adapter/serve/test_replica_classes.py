"""One actor class for all replicas of a name."""

import pytest
from ray._common.utils import import_attr
from ray.serve._private.config import DeploymentConfig
from ray.serve._private.deployment_info import DeploymentInfo

from nereid.controller import CALLBACK


def deployed(name: str) -> DeploymentInfo:
    return DeploymentInfo(DeploymentConfig(), None, 0, b"", name)  # type: ignore[arg-type]


def test_deployments_of_one_name_share_their_class(monkeypatch: pytest.MonkeyPatch) -> None:
    first, again, other = map(deployed, ("ServeReplica:m:1:m", "ServeReplica:m:1:m", "ServeReplica:n:1:n"))
    assert first.actor_def is not again.actor_def, "Ray shares them itself: share_replica_classes can go"
    monkeypatch.setattr(DeploymentInfo, "actor_def", DeploymentInfo.actor_def)  # put back afterwards
    import_attr(CALLBACK)()
    first, again, other = map(deployed, ("ServeReplica:m:1:m", "ServeReplica:m:1:m", "ServeReplica:n:1:n"))
    assert first.actor_def is again.actor_def is not other.actor_def
    assert first.actor_def.__ray_metadata__.class_name == "ServeReplica:m:1:m"
