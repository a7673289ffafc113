"""Makes Serve's controller spread the replicas of a deployment over the nodes, as far as there is room.

Ray 2.60 places each with the strategy SPREAD, which is a wish: two replicas often lie on one node. A
limit by `max_replicas_per_node` would have to follow the number of nodes, and restarts all replicas when it
changes.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

_IMPLICIT: Final = "node:__internal_implicit_resource_nereid"
_LEAST: Final = 0.0001
PACKED: Final = f"{_IMPLICIT}_packed"
"""The resource of replicas that are to lie on few nodes."""
_ANYWHERE: Final = "SPREAD"

R = TypeVar("R", bound=Hashable)


class Occupancy(NamedTuple):
    """A node with room for a further replica of a deployment.

    Attributes:
        node: its id.
        own: replicas of that deployment there, also those that are to start.
        all: replicas of all deployments there.
    """

    node: str
    own: int
    all: int


def placeable(packed: bool) -> dict[str, float]:
    """Return a resource that a replica needs so that Ray places it as it is told to.

    Ray 2.60 places an actor that needs nothing on any node, whatever its scheduling strategy is. Each node
    has 1 of every resource with this prefix, and counts in steps of 0.0001.
    """
    return {PACKED if packed else _IMPLICIT: _LEAST}


def spread_replicas() -> None:
    """Have the controller place, and stop, replicas so; runs in its process."""
    from ray.serve._private.deployment_scheduler import DeploymentScheduler

    scheduler: Any = DeploymentScheduler
    scheduler._schedule_with_spread_strategy = _schedule
    stop_by_ray = scheduler._get_replicas_to_stop

    def stop(self: Any, deployment: Any, number: int, **gangs: Any) -> Any:
        where = self._running_replicas[deployment]
        begun = len(self._pending_replicas[deployment]) + len(self._launching_replicas[deployment])
        info = self._deployments[deployment]
        if begun or self._recovering_replicas[deployment] or not _is_free(info) or _is_packed(info):
            return stop_by_ray(self, deployment, number, **gangs)
        return choose_stopped(where, number, self._cluster_node_info_cache.get_active_node_ids())

    scheduler._get_replicas_to_stop = stop


def choose_node(nodes: Collection[Occupancy], packed: bool) -> str | None:
    """Return the node for a further replica of a deployment; None without a node that has room.

    It is the one with the fewest replicas of that deployment, or with the most if they are packed; of
    several, the one with the fewest of all.
    """
    if not nodes:
        return None
    return min(nodes, key=lambda each: (-each.own if packed else each.own, each.all, each.node)).node


def choose_stopped(where: Mapping[R, str], number: int, active: Collection[str]) -> set[R]:
    """Return which of the running replicas of a deployment stop, so that the others are spread.

    Args:
        where: the node of each replica, the oldest first.
        number: how many stop.
        active: the nodes on which replicas may be placed; those on others stop first.
    """
    left = dict(reversed(list(where.items())))
    counts = Counter(left.values())
    for _ in range(min(number, len(left))):
        chosen = max(left, key=lambda each: (left[each] not in active, counts[left[each]]))
        counts[left.pop(chosen)] -= 1
    return set(where) - set(left)


def _schedule(scheduler: Any) -> None:
    """Take the place of `DeploymentScheduler._schedule_with_spread_strategy`."""
    for deployment, pending in scheduler._pending_replicas.items():
        for request in list(pending.values()):
            free = request.target_node_id is None and request.gang_placement_group is None
            fixed = not (free and _is_free(scheduler._deployments[deployment]))
            node = None if fixed else _target(scheduler, deployment)
            scheduler._schedule_replica(request, _ANYWHERE, target_node_id=node)


def _target(scheduler: Any, deployment: Any) -> str | None:
    """Return where a replica is to be placed; None for anywhere, which it also is where that has no room."""
    free = scheduler._get_available_resources_per_node()
    active = scheduler._cluster_node_info_cache.get_active_node_ids()
    if len(active) < 2:
        return None
    own, everything = _count(scheduler, [deployment]), _count(scheduler, scheduler._deployments)
    info = scheduler._deployments[deployment]
    needed = info.required_resources
    fitting = [node for node in free if node in active and free[node].can_fit(needed)]
    return choose_node([Occupancy(node, own[node], everything[node]) for node in fitting], _is_packed(info))


def _count(scheduler: Any, deployments: Collection[Any]) -> Counter[str]:
    """Return how many replicas of these deployments run on each node, or are to."""
    found: Counter[str] = Counter()
    for each in deployments:
        found.update(scheduler._running_replicas.get(each, {}).values())
        launching = scheduler._launching_replicas.get(each, {}).values()
        found.update(info.target_node_id for info in launching if info.target_node_id)
    return found


def _is_free(info: Any) -> bool:
    """Whether nothing else says where the replicas of a deployment lie."""
    fixed = (info.placement_group_bundles, info.label_selector, info.is_gang, info.pins_replicas)
    return not any(fixed)


def _is_packed(info: Any) -> bool:
    return PACKED in (info.actor_resources or {})
