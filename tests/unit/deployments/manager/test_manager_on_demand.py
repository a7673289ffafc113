"""Models on demand: listed at the start, loaded by a demand, evicted for another."""

import asyncio
import logging
from typing import Any

import pytest

from app.core.errors import ErrorCode, InferError
from app.core.residency import ReplicaUse
from app.routing.table import IDLE
from deployments.manager.manager import RepositoryManager
from deployments.manager.polling import Poller, Polling
from deployments.residency import residency
from tests.unit.deployments.manager.manager_bench import Bench, load, reason, states
from tests.unit.deployments.model_directories import CONFIG
from tests.waiting import until

MIB = 1 << 20
TWO = 150 * MIB
"""Room for two replicas that were never measured."""
TENSORS = """
input [{ name: "x" data_type: TYPE_FP32 dims: [1] }] output [{ name: "y" data_type: TYPE_FP32 dims: [1] }]
"""
ENSEMBLE = """platform: "ensemble"
input [{ name: "x" data_type: TYPE_FP32 dims: [1] }] output [{ name: "y" data_type: TYPE_FP32 dims: [1] }]
ensemble_scheduling { step [
  { model_name: "a" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } }
] }"""


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residency, "SETTLE_S", 0.0)


async def begun(bench: Bench, **settings: Any) -> RepositoryManager:
    return await bench.start(**{"model_memory_bytes": TWO, **settings})


async def bring(manager: RepositoryManager, *names: str) -> None:
    for name in names:
        await asyncio.wait_for(manager.demand(name), 60)


async def test_models_are_listed_and_only_those_pinned_are_loaded(bench: Bench) -> None:
    bench.add("a")
    bench.add("b", versions=(1, 2))
    bench.add("named")
    bench.add("pinned", CONFIG + 'parameters { key: "pinned" value { string_value: "true" } }')
    manager = await begun(bench, load_model=["named"])
    assert sorted(bench.serve.deployed) == ["named:1", "pinned:1"]
    rows = {(name, version): (state, why) for name, version, state, why in await manager.index()}
    assert rows == {
        ("a", "1"): ("READY", "idle"),
        ("b", "2"): ("READY", "idle"),
        ("named", "1"): ("READY", ""),
        ("pinned", "1"): ("READY", ""),
    }
    assert (manager.table.all_ready, manager.table.all_loaded, manager.table.initialised) == (True,) * 3
    assert {entry.name for entry in manager.table.ready if entry.idle} == {"a", "b"}


async def test_a_demand_loads_and_the_oldest_makes_room(bench: Bench) -> None:
    for name in "abc":
        bench.add(name)
    manager = await begun(bench)
    ingress = bench.ingress(manager)
    await bring(manager, "a", "b", "a")
    assert bench.serve.deployed == ["a:1", "b:1"]
    assert ingress.table.applications.keys() == {"a:1", "b:1"}
    use = ReplicaUse("r", 64 * MIB, 1e-9)
    manager._on_demand.residency.report([("a:1", use)])
    await bring(manager, "c")
    assert bench.serve.deleted == ["b:1"]
    assert await reason(manager, "b") == IDLE
    assert ingress.table.applications.keys() == {"a:1", "c:1"}
    figures = manager._on_demand.figures()
    assert (figures.models, figures.registered, figures.demanded, figures.evicted) == (2, 3, 3, 1)


async def test_an_application_is_deleted_when_every_ingress_has_left_it(bench: Bench) -> None:
    for name in "abc":
        bench.add(name)
    manager = await begun(bench)
    ingress = bench.ingress(manager)
    await bring(manager, "a", "b")
    ingress.let_apply.clear()
    asked = asyncio.create_task(manager.demand("c"))
    await until(lambda: ingress.received[-1].versions("a")[1].idle)  # type: ignore[index]
    assert (bench.serve.deleted, "c:1" in bench.serve.deployed) == ([], False)
    ingress.let_apply.set()
    await asyncio.wait_for(asked, 60)
    assert bench.serve.deleted == ["a:1"]


async def test_the_complete_configuration_is_kept_after_an_eviction(bench: Bench) -> None:
    for name in "abc":
        bench.add(name)
    manager = await begun(bench)
    await bring(manager, "a")
    complete = manager.lifecycle.entries["a"][1].config
    await bring(manager, "b", "c")
    assert bench.serve.deleted == ["a:1"]
    assert manager.lifecycle.entries["a"][1].config == complete


async def test_a_broken_model_answers_with_its_reason_and_is_still_listed(bench: Bench) -> None:
    bench.add("a")
    bench.serve.failures["a:1"] = "Internal: no such file"
    manager = await begun(bench)
    for _ in range(2):
        with pytest.raises(InferError, match="no such file") as caught:
            await bring(manager, "a")
        assert caught.value.code is ErrorCode.UNAVAILABLE
    assert bench.serve.deployed == ["a:1"]
    assert await states(manager) == [("a", "1", "READY")]


async def test_a_model_larger_than_the_budget_is_refused(bench: Bench) -> None:
    bench.add("a")
    manager = await begun(bench, model_memory_bytes=MIB)
    with pytest.raises(InferError, match="more than --model-memory-bytes"):
        await bring(manager, "a")


async def test_an_unknown_model_is_not_found(bench: Bench) -> None:
    manager = await begun(bench)
    with pytest.raises(InferError, match="'x' is not found"):
        await bring(manager, "x")


async def test_an_ensemble_is_ready_and_a_demand_loads_what_it_calls(bench: Bench) -> None:
    bench.add("a", CONFIG)  # without inputs and outputs: the load tells them
    bench.add("e", ENSEMBLE)
    manager = await begun(bench)
    assert await reason(manager, "e") == IDLE
    assert manager.table.by_name["e"][1].undescribed
    with pytest.raises(InferError):  # what the fake loads has no tensors either
        manager.table.resolve("e")
    await bring(manager, "e")
    assert bench.serve.deployed == ["a:1"]


async def test_the_limit_of_an_ensembles_requests_is_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """In Triton's words."""
    caplog.set_level(logging.INFO, "deployments.manager")
    bench.add("a", CONFIG + TENSORS)
    bench.add("e", ENSEMBLE.replace("step [", "max_inflight_requests: 4 step ["))
    bench.add("without", ENSEMBLE)
    await begun(bench)
    logged = [text for text in caplog.messages if "max_inflight_requests" in text]
    assert logged == ["Ensemble model 'e' configured with max_inflight_requests: 4"]


async def test_an_ensemble_of_described_models_needs_no_load_to_be_called(bench: Bench) -> None:
    bench.add("a", CONFIG + TENSORS)
    bench.add("e", ENSEMBLE)
    manager = await begun(bench)
    assert manager.table.resolve("e").ensemble
    assert (await states(manager))[1] == ("e", "1", "READY")


async def test_polling_lists_new_models_and_reloads_those_in_memory(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.add("a")
    manager = await begun(bench, model_control_mode="poll")
    parts = manager.lifecycle, manager._catalog, manager._on_demand, manager._background
    polling = Polling(*parts, Poller({}))
    bench.add("b")
    await polling._apply_change("b", present=True)
    assert bench.serve.deployed == []
    assert await reason(manager, "b") == IDLE
    await bring(manager, "b")
    bench.add("b", CONFIG + TENSORS)
    await polling._apply_change("b", present=True)
    assert bench.serve.deployed == ["b:1", "b:1@2"]
    await polling._apply_change("a", present=False)
    assert await states(manager) == [("a", "1", "UNAVAILABLE"), ("b", "1", "READY")]


async def test_a_restarted_manager_lists_idle_models_in_its_first_table(bench: Bench) -> None:
    for name in "ab":
        bench.add(name)
    await bring(await begun(bench), "a")
    restarted = bench.begin(model_memory_bytes=TWO)
    ingress = bench.ingress(restarted)
    await until(lambda: ingress.received)
    assert {entry.name: entry.idle for entry in ingress.received[0].ready} == {"a": False, "b": True}


async def test_in_explicit_mode_a_load_request_lists_a_model_which_others_may_evict(bench: Bench) -> None:
    for name in "abc":
        bench.add(name)
    manager = await bench.start_explicit(model_memory_bytes=TWO)
    assert await states(manager) == [("a", "", ""), ("b", "", ""), ("c", "", "")]
    for name in "abc":
        await load(manager, name)
    assert bench.serve.deleted == ["a:1"]
    assert await reason(manager, "a") == IDLE
    bench.serve.routed = {("a", 1)}
    await bring(manager, "a")
    assert bench.serve.deployed.count("a:1") == 2
    await manager.unload("c")
    with pytest.raises(InferError, match="'c'"):
        manager.table.resolve("c")


async def test_a_version_scaled_to_no_replica_is_not_loaded_again(bench: Bench) -> None:
    bench.add("a")
    manager = await begun(bench)
    await bring(manager, "a")
    await manager.lifecycle.change_served("a:1", reason=IDLE)
    await manager._on_demand.bring("a")
    assert bench.serve.deployed == ["a:1"]
