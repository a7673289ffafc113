"""Makes Serve's controller use one actor class for all replicas of a name, however often it is deployed.

Ray 2.60 makes a class for each `DeploymentInfo`, that is for each load of a model. It exports the class to
the cluster, and every process that gets a handle of a replica imports it; none of them ever drops one
(`ActorClass._remote`, `FunctionActorManager.load_actor_class`, `_ActorClassMethodMetadata._cache`).
"""

from typing import Any

from ray.serve._private.deployment_info import DeploymentInfo


def share_replica_classes() -> None:
    """Keep the class that `DeploymentInfo.actor_def` makes, by its name; runs in the controller's process.

    The class depends on nothing but that name, which is made of those of application and deployment.
    """
    make: Any = DeploymentInfo.actor_def.fget  # type: ignore[attr-defined]
    made: dict[str | None, Any] = {}

    def actor_def(info: DeploymentInfo) -> Any:
        name = info.actor_name
        if name not in made:
            made[name] = make(info)
        return made[name]

    DeploymentInfo.actor_def = property(actor_def)  # type: ignore[method-assign, assignment]
