"""The nodes of the cluster, over a fake of Ray."""

from typing import Any

import pytest
import ray

from app.ray_adapter import node


class Gcs:
    def get_draining_nodes(self, timeout: float) -> dict[str, int]:
        return {"leaving": 0}


def test_nodes_that_are_lost_or_drained_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(name: str, alive: bool, **resources: float) -> dict[str, Any]:
        return {"NodeID": name, "Alive": alive, "Resources": resources}

    nodes = [
        listed("head", True, CPU=2.0),
        listed("lost", False),
        listed("leaving", True, GPU=4.0),
        listed("other", True, GPU=1.0),
    ]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(node, "_gcs", Gcs)
    assert node.gpus_by_node() == [0, 1]
