"""The request router of every deployment of the server: it publishes the channel addresses of the replicas.

Requests do not pass through it, except those of a plain `DeploymentHandle`, which are spread by Serve's own
power of two choices. Serve pickles this module by value, so it has no state and imports nothing of ours.
"""

import sys

from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter
from ray.serve.request_router import RunningReplica


class DirectRouter(PowerOfTwoChoicesRequestRouter):
    """Publishes the addresses that replicas returned from `record_replica_metadata`.

    Ray 2.60 has no public name for the base class, nor for the `_deployment_id` of a router.
    """

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Called by Serve with all running replicas at every change."""
        super().update_replicas(replicas)
        # A process that only calls through handles subscribes to nothing, and may have an `app` of its own.
        discovery = sys.modules.get("app.ray_adapter.serve.replicas")
        if discovery is not None:
            metadata = {replica.replica_id.unique_id: replica.replica_metadata for replica in replicas}
            discovery.publish(self._deployment_id.app_name, metadata)
