"""What a node consumes, with what its replicas have done."""

from collections.abc import Collection
from typing import Any, cast

import pytest

from app.core.cost.amounts import Consumption
from app.core.cost.reports import CallUse, ReplicaWork, VersionUse
from app.cost.node import NodeReading
from app.cost.node_use import NodeWatch, Served, Works, divide
from tests.unit.app.routing_fakes import entry


class Meter:
    """Has readings."""

    def __init__(self, *readings: dict[str, float]) -> None:
        self.readings = [*readings]

    def read(self) -> NodeReading:
        used = self.readings.pop(0)
        groups = {(name, ""): Consumption(cpu_seconds=seconds) for name, seconds in used.items()}
        return NodeReading(groups, sum(used.values()), 1.0)


class Replicas:
    """Are asked."""

    def __init__(self) -> None:
        self.works: Works = {}
        self.asked: list[set[str]] = []

    async def ask(self, applications: Collection[str]) -> Works:
        self.asked.append(set(applications))
        return {name: works for name, works in self.works.items() if name in applications}


def watch(meter: Meter, replicas: Replicas, shared: bool = False) -> NodeWatch:
    served = {"a:1": Served(entry("a"), 2), "b:1": Served(entry("b"), 1)}
    return NodeWatch("n", cast(Any, meter), lambda: served, replicas.ask, shared)


async def test_consumption_and_work_are_told_from_the_second_reading_on() -> None:
    replicas = Replicas()
    replicas.works = {"a:1": [ReplicaWork("r1", 10, 20)], "b:1": [ReplicaWork("r2", 5, 5)]}
    node = watch(Meter({}, {"model a:1": 0.5, "model c:3@2": 0.2, "raylet": 0.1}, {"raylet": 0.1}), replicas)
    await node.read()
    call = CallUse("b", 1, "", "a", 1, 1, 1.0)
    replicas.works = {"a:1": [ReplicaWork("r1", 12, 26, in_flight=1, calls=[call]), ReplicaWork("r3", 1, 1)]}
    use = await node.read()
    assert replicas.asked == [{"a:1", "b:1"}, {"a:1"}], "an idle replica is left in peace"
    kept = Consumption(reserved_core_seconds=2.0)
    assert use.versions[0] == VersionUse("a", 1, "", kept, 3, 7, 1, [call])
    assert use.versions[2:] == [
        VersionUse("a", 1, "", Consumption(cpu_seconds=0.5)),
        VersionUse("c", 3, "", Consumption(cpu_seconds=0.2)),
    ]
    assert use.overhead == {"raylet": Consumption(cpu_seconds=0.1)}
    assert use.cpu_seconds == pytest.approx(0.8)
    await node.read()
    assert replicas.asked[-1] == {"a:1"}, "one with requests in flight is asked without any consumption"


async def test_a_title_may_name_the_model_alone_or_be_cut_off() -> None:
    use = watch(Meter({"model a": 0.1, "model b:": 0.3}), Replicas())
    versions = (await use.read()).versions
    assert {each.model: each.consumed.cpu_seconds for each in versions if each.consumed.cpu_seconds} == {
        "a": 0.1,
        "b": 0.3,
    }


async def test_one_process_is_divided_by_what_models_have_computed() -> None:
    replicas = Replicas()
    replicas.works = {"a:1": [ReplicaWork("r1")], "b:1": [ReplicaWork("r2")]}
    node = watch(Meter({}, {"ingress": 1.0}), replicas, shared=True)
    await node.read()
    replicas.works = {"a:1": [ReplicaWork("r1", compute_s=0.3)], "b:1": [ReplicaWork("r2", compute_s=0.1)]}
    use = await node.read()
    found = {each.model: each.consumed.cpu_seconds for each in use.versions if each.consumed.cpu_seconds}
    assert found == {"a": pytest.approx(0.3), "b": pytest.approx(0.1)}
    assert use.overhead["ingress"].cpu_seconds == pytest.approx(0.6)


async def test_models_with_processes_take_nothing_of_the_fronts() -> None:
    replicas = Replicas()
    replicas.works = {"a:1": [ReplicaWork("r1")], "b:1": [ReplicaWork("r2")]}
    node = watch(Meter({}, {"ingress": 1.0, "model b": 0.5}), replicas, shared=True)
    await node.read()
    replicas.works = {"a:1": [ReplicaWork("r1", compute_s=0.2)], "b:1": [ReplicaWork("r2", compute_s=5.0)]}
    use = await node.read()
    found = {each.model: each.consumed.cpu_seconds for each in use.versions if each.consumed.cpu_seconds}
    assert found == {"a": pytest.approx(0.2), "b": 0.5}


def test_threads_at_once_get_no_more_than_there_is() -> None:
    overhead = {"ingress": Consumption(cpu_seconds=1.0, energy_joules=8.0)}
    models: dict[tuple[str, str], Consumption] = {}
    divide(overhead, models, {"a:1": 3.0, "b:1": 1.0})
    assert models["a:1", ""] == Consumption(cpu_seconds=0.75, energy_joules=6.0)
    assert overhead["ingress"].cpu_seconds == 0.0
