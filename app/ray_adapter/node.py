"""This process's node and replica, and the nodes of the cluster, as Ray reports them."""

from typing import Any, Final

import ray
from ray import serve

NODE_ADDRESS: Final = "node"
"""The value of `channel_address` that means the address of the node in its cluster."""


def node_id() -> str:
    """Return Ray's id of the node that this process runs on."""
    return str(ray.get_runtime_context().get_node_id())


def listen_host(channel_address: str) -> str:
    """Return the address to listen on: the given one, or the node's own for `NODE_ADDRESS`."""
    if channel_address != NODE_ADDRESS:
        return channel_address
    util: Any = ray.util  # untyped in Ray
    return str(util.get_node_ip_address())


def gpus_by_node() -> list[int]:
    """Return the number of GPUs of each live node."""
    cluster: Any = ray  # `nodes` is untyped in Ray
    return [int(node["Resources"].get("GPU", 0)) for node in cluster.nodes() if node["Alive"]]


def replica_rank() -> int:
    """Return the place of this process among the replicas of its deployment.

    Ray 2.60 gives `ReplicaContext.rank` as an object with ranks in the deployment and on the node.
    """
    rank = serve.get_replica_context().rank
    return int(rank.rank) if rank is not None else 0


def replica_deployment() -> tuple[str, str]:
    """Return the deployment and the application that this process is a replica of."""
    context = serve.get_replica_context()
    return context.deployment, context.app_name
