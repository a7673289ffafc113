"""The request router of every model deployment: it reports the deployment's replicas to this process.

Requests do not pass through it, except those of a plain `DeploymentHandle`, which are spread by Serve's own
power of two choices. Serve pickles this module by value, so it holds no state.
"""

import sys

from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter
from ray.serve.request_router import RunningReplica


class DirectRouter(PowerOfTwoChoicesRequestRouter):
    """Publishes the channel addresses that replicas return from `record_replica_metadata`."""

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Called by Serve with all running replicas at every change."""
        super().update_replicas(replicas)
        # A process that only calls through handles subscribes to nothing, and may have an `app` of its own.
        if "app.routing.replicas" not in sys.modules:
            return
        from app.routing.replicas import ReplicaAddress, publish

        addresses = []
        for replica in replicas:
            metadata = replica.replica_metadata
            if metadata.get("unix") or metadata.get("tcp"):
                addresses.append(
                    ReplicaAddress(
                        replica.replica_id.unique_id,
                        metadata["node_id"],
                        metadata.get("unix", ""),
                        metadata.get("tcp", ""),
                    )
                )
        publish(self._deployment_id.app_name, tuple(addresses))
