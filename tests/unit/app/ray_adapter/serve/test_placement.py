"""Where replicas of a deployment are placed, and which of them stop."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve._private.deployment_scheduler import DeploymentScheduler

from app.ray_adapter.serve.placement import (
    Occupancy,
    choose_node,
    choose_stopped,
    placeable,
    spread_replicas,
)


def placed(nodes: int, replicas: int, packed: bool = False) -> list[int]:
    """Return how many replicas the nodes get, of which the first has ten of others."""
    own = Counter({str(number): 0 for number in range(nodes)})
    for _ in range(replicas):
        seen = [Occupancy(node, count, count + 10 * (node == "0")) for node, count in own.items()]
        chosen = choose_node(seen, packed)
        assert chosen is not None
        own[chosen] += 1
    return sorted(own.values())


@pytest.mark.parametrize(
    ("nodes", "replicas", "found"),
    [(2, 2, [1, 1]), (3, 3, [1, 1, 1]), (3, 2, [0, 1, 1]), (3, 7, [2, 2, 3]), (1, 2, [2])],
)
def test_replicas_are_on_as_many_nodes_as_there_are(nodes: int, replicas: int, found: list[int]) -> None:
    assert placed(nodes, replicas) == found


def test_packed_replicas_are_on_one_node() -> None:
    assert placed(3, 4, packed=True) == [0, 0, 4]


def test_node_with_the_fewest_replicas_of_all_is_taken_of_equal_ones() -> None:
    assert choose_node([Occupancy("a", 0, 4), Occupancy("b", 0, 2), Occupancy("c", 1, 1)], False) == "b"
    assert choose_node([], False) is None


def test_fullest_node_loses_its_newest_replica() -> None:
    where = {"old": "a", "middle": "a", "new": "b"}
    assert choose_stopped(where, 1, "ab") == {"middle"}
    assert choose_stopped({**where, "newest": "b"}, 2, "ab") == {"middle", "newest"}
    assert choose_stopped(where, 9, "ab") == set(where)


def test_replica_on_a_node_that_leaves_stops_first() -> None:
    assert choose_stopped({"old": "a", "middle": "a", "new": "b"}, 1, "a") == {"new"}


class Resources(dict[str, float]):
    def can_fit(self, needed: Mapping[str, float]) -> bool:
        return all(self.get(name, 0.0) >= amount for name, amount in needed.items())


class Scheduler:
    """What `DeploymentScheduler` has of deployments without a replica, on nodes `a` and `b`."""

    def __init__(self, needed: Mapping[str, float], **fixed: Any) -> None:
        free = {"a": Resources(seat=1.0, **placeable(True)), "b": Resources()}
        nodes: Any = {"get_active_node_ids": lambda: {"a", "b"}}
        fields = {
            "placement_group_bundles": None,
            "label_selector": None,
            "is_gang": False,
            "pins_replicas": False,
        }
        info = SimpleNamespace(**{**fields, **fixed}, required_resources=needed, actor_resources=needed)
        request = SimpleNamespace(target_node_id=None, gang_placement_group=None)
        self._get_available_resources_per_node = lambda: free
        self._cluster_node_info_cache = SimpleNamespace(**nodes)
        self._deployments = {"model": info}
        self._pending_replicas = defaultdict(dict, {"model": {number: request for number in range(4)}})
        self._launching_replicas: Any = defaultdict(dict)
        self._recovering_replicas: Any = defaultdict(set)
        self._running_replicas: Any = defaultdict(dict)
        self.placed: list[str | None] = []

    def _schedule_replica(self, request: Any, strategy: str, target_node_id: str | None) -> None:
        self.placed.append(target_node_id)
        info = SimpleNamespace(target_node_id=target_node_id)
        self._launching_replicas["model"][len(self.placed)] = info


@pytest.fixture
def ray_scheduler(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("_schedule_with_spread_strategy", "_get_replicas_to_stop"):
        monkeypatch.setattr(DeploymentScheduler, name, getattr(DeploymentScheduler, name))
    spread_replicas()
    return DeploymentScheduler


@pytest.mark.parametrize(
    ("needed", "found"),
    [
        ({}, ["a", "b", "a", "b"]),
        ({"seat": 0.5}, ["a"] * 4),
        ({"gone": 1.0}, [None] * 4),
        (placeable(True), ["a"] * 4),
    ],
)
def test_controller_places_replicas_where_there_is_room(
    ray_scheduler: Any, needed: Mapping[str, float], found: list[str | None]
) -> None:
    scheduler = Scheduler(needed)
    ray_scheduler._schedule_with_spread_strategy(scheduler)
    assert scheduler.placed == found


def test_replicas_that_something_else_places_are_left_to_ray(ray_scheduler: Any) -> None:
    scheduler = Scheduler({}, label_selector={"zone": "x"})
    ray_scheduler._schedule_with_spread_strategy(scheduler)
    assert scheduler.placed == [None] * 4


def test_controller_stops_replicas_of_the_fullest_node(ray_scheduler: Any) -> None:
    scheduler = Scheduler({})
    scheduler._pending_replicas.clear()
    scheduler._running_replicas["model"] = {"old": "a", "middle": "a", "new": "b"}
    assert ray_scheduler._get_replicas_to_stop(scheduler, "model", 1) == {"middle"}
