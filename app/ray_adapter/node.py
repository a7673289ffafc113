"""This process's node and replica, and the nodes of the cluster, as Ray reports them."""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import ray
from ray import serve

from app.core.system.nodes import Machines, Node
from app.ray_adapter.cluster_environment import cluster_addresses

NODE_ADDRESS: Final = "node"
"""The value of `channel_address` that means the address of the node in its cluster."""
_ANSWER_S: Final = 10.0
ASK_S: Final = 15.0
"""Time for a call of Ray or Serve in periodic work; Ray gives most of them none."""


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
    """Return the number of GPUs of each live node, but of none that is drained: nothing is placed there."""
    cluster: Any = ray  # `nodes` is untyped in Ray
    leaving = _gcs().get_draining_nodes(timeout=_ANSWER_S)
    staying = (node for node in cluster.nodes() if node["Alive"] and node["NodeID"] not in leaving)
    return [int(node["Resources"].get("GPU", 0)) for node in staying]


def machines() -> Machines:
    """Return the nodes of the cluster, those that are gone too, and its dashboard; asks the GCS."""
    cluster: Any = ray  # `nodes` is untyped in Ray
    return Machines(tuple(_described(node, node_id()) for node in cluster.nodes()), cluster_addresses()[1])


def _described(node: Mapping[str, Any], here: str) -> Node:
    has = node["Resources"]
    return Node(
        name=str(node["NodeManagerHostname"]),
        id=str(node["NodeID"]),
        alive=bool(node["Alive"]),
        here=node["NodeID"] == here,
        head="node:__internal_head__" in has,
        processors=float(has.get("CPU", 0)),
        gpus=float(has.get("GPU", 0)),
        memory_bytes=float(has.get("memory", 0)),
    )


def free_resources() -> dict[str, dict[str, float]]:
    """Return the resources that are free on each node on which something may be placed, by the node's id."""
    from ray._private import state

    private: Any = state  # untyped in Ray
    leaving = _gcs().get_draining_nodes(timeout=_ANSWER_S)
    free = private.available_resources_per_node()
    return {node: dict(found) for node, found in free.items() if node not in leaving}


@cache
def _gcs() -> Any:
    """Return a client of the GCS, which connects again by itself."""
    import ray._raylet as raylet

    private: Any = raylet  # untyped in Ray
    return private.GcsClient(address=ray.get_runtime_context().gcs_address)


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
