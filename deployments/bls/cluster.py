"""How the calls of a model reach the repository manager and the replicas of other models."""

from typing import Any, Protocol

from deployments.spec import MANAGER


class Cluster(Protocol):
    """The cluster, as the router of a model's calls uses it."""

    def node_id(self) -> str:
        """Return the id of this process's node."""

    def open_manager(self, application: str) -> Any:
        """Return the manager's handle, whose methods have `remote`. Blocks."""

    def watch_replicas(self, deployment: str, application: str) -> Any:
        """Have the replicas of an application published (`app.ray_adapter.serve.replicas`) until the result's
        `shutdown` is called. Blocks.
        """


class RayCluster:
    """The cluster as a worker of Ray reaches it."""

    def node_id(self) -> str:
        from app.ray_adapter.node import node_id  # a process without a cluster has no Ray

        return node_id()

    def open_manager(self, application: str) -> Any:
        return self.watch_replicas(MANAGER, application)

    def watch_replicas(self, deployment: str, application: str) -> Any:
        from app.ray_adapter.serve.handles import open_handle

        return open_handle(deployment, application)
