"""What the manager has to know of the cluster."""

import logging
from typing import Any

import ray

logger = logging.getLogger(__name__)


def look_at_cluster(channel_address: str) -> tuple[int, ...]:
    """The CUDA ordinals that the best equipped node has; warns of nodes out of reach."""
    cluster: Any = ray
    alive = [node for node in cluster.nodes() if node["Alive"]]
    if len(alive) > 1 and channel_address != "node":
        logger.warning(
            "the cluster has %d nodes, but replicas listen on %s only: models on other nodes than their "
            "ingress are out of reach; set channel_address to 'node'",
            len(alive),
            channel_address,
        )
    return tuple(range(max((int(node["Resources"].get("GPU", 0)) for node in alive), default=0)))
