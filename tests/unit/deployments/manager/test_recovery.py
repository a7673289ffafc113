"""A restarted repository manager recovers its state from Serve."""

import asyncio

import pytest
from tritonclient.grpc import model_config_pb2 as mc

from app.routing.table_bytes import decode_table
from deployments.manager import recovery
from deployments.manager.serve import applications
from deployments.manager.serve.applications import ModelApplication, parse_application
from deployments.spec import Description, ModelSpec
from tests.unit.deployments.manager.manager_bench import Bench, load, reason, states
from tests.unit.deployments.model_directories import CONFIG, KEY
from tests.waiting import until


def description(
    name: str, application: str, key: bytes = KEY, error: str = "", loaded_at: float = 0.0
) -> Description:
    parsed = parse_application(application)
    assert parsed is not None
    config = mc.ModelConfig(name=name, backend="identity").SerializeToString()
    spec = ModelSpec(name, parsed[1], "", config, application, "", key, loaded_at=loaded_at)
    return Description(spec, config, error=error)


async def test_restarted_manager_adopts_running_applications(bench: Bench) -> None:
    bench.add("m")
    bench.add("n")
    first = await bench.start_explicit("m")
    number = first.table.number
    await asyncio.sleep(0.002)
    second = await bench.start_explicit("m", "n")
    assert bench.serve.deployed == ["m:1", "n:1"], "running models are not loaded again"
    assert await states(second) == [("m", "1", "READY"), ("n", "1", "READY")]
    assert second.table.number > number


async def test_restarted_manager_is_ready_before_it_scans(bench: Bench) -> None:
    bench.serve.running["m:1"] = description("m", "m:1")
    bench.add("slow")
    bench.serve.gates["slow"] = asyncio.Event()
    made = bench.begin()
    table = decode_table(await made.watch("ingress", 0))
    assert table.initialised and list(table.applications) == ["m:1"]


async def test_recovery_picks_the_newest_generation(bench: Bench) -> None:
    """The one loaded last: names are used again."""
    for loaded_at, application in enumerate(("m:1", "m:1@3", "m:1@2", "m:2@3")):
        bench.serve.running[application] = description("m", application, loaded_at=loaded_at)
    made = await bench.start_explicit()
    assert sorted(made.table.applications) == ["m:1@2", "m:2@3"]
    await until(lambda: sorted(bench.serve.deleted) == ["m:1", "m:1@3"])
    bench.add("m")
    await load(made, "m")
    assert bench.serve.deployed == ["m:1"]


async def test_recovery_skips_a_generation_that_does_not_serve(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manager died while a reload was about to fail: the version before it is the one in service."""
    monkeypatch.setattr(recovery, "_DESCRIBE_S", 0.01)
    bench.serve.running["m:1"] = description("m", "m:1")
    bench.serve.running["m:1@2"] = description("m", "m:1@2", error="Internal: no such file")
    bench.serve.running["m:1@3"] = description("m", "m:1@3")
    bench.serve.failures["m:1@3"] = RuntimeError("the actor died")
    bench.serve.running["m:1@4"] = description("m", "m:1@4")
    bench.serve.down.add("m:1@4")
    made = await bench.start_explicit()
    assert list(made.table.applications) == ["m:1"]
    await until(lambda: sorted(bench.serve.deleted) == ["m:1@2", "m:1@3", "m:1@4"])


async def test_application_is_asked_again_before_it_is_replaced(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call may go to a replica that went with its node, while others serve."""
    bench.add("m")
    await bench.start_explicit("m")
    monkeypatch.setattr(recovery, "_PAUSE_S", 0.001)
    bench.serve.failures["m:1"] = RuntimeError("the actor died")
    describe, asked = bench.serve.describe, []

    async def third_time(model: str, application: str) -> Description:
        asked.append(application)
        if len(asked) == 3:
            bench.serve.failures.clear()
        return await describe(model, application)

    monkeypatch.setattr(applications, "describe", third_time)
    made = await bench.start_explicit("m")
    assert asked == ["m:1"] * 3
    assert list(made.table.applications) == bench.serve.deployed == ["m:1"]


@pytest.mark.parametrize("mode", ["none", "explicit"])
async def test_restarted_manager_takes_no_files_that_nobody_asked_for(bench: Bench, mode: str) -> None:
    settings = {"model_control_mode": mode}
    if mode == "explicit":
        settings["load_model"] = "*"
    for name in ("changed", "lost", "failed", "unloaded"):
        bench.add(name)
    bench.serve.failures["failed:1"] = "Internal: no such file"
    first = await bench.start(**settings)
    if mode == "explicit":
        await first.unload("unloaded")
    bench.add("changed", CONFIG.replace("4", "8"))
    bench.add("new")
    del bench.serve.running["lost:1"]
    bench.serve.deployed.clear()
    second = await bench.start(**settings)
    assert sorted(bench.serve.deployed) == ["failed:1", "lost:1"]
    assert "changed:1" in second.table.applications
    assert second.table.initialised


async def test_manager_that_died_during_the_start_does_not_leave_models_out(bench: Bench) -> None:
    bench.add("m")
    bench.add("slow")
    bench.serve.gates["slow"] = asyncio.Event()
    first = bench.begin()
    await first.check_health()
    await until(lambda: "m:1" in first.table.applications)
    bench.serve.gates.clear()
    second = await bench.start()
    assert sorted(second.table.applications) == ["m:1", "slow:1"]


async def test_restarted_manager_follows_files_in_mode_poll(bench: Bench) -> None:
    bench.add("m")
    await bench.start(model_control_mode="poll")
    bench.add("m", CONFIG.replace("4", "8"))
    bench.add("new")
    second = await bench.start(model_control_mode="poll")
    assert sorted(second.table.applications) == ["m:1@2", "new:1"]


async def test_models_of_another_deployment_are_reloaded(bench: Bench) -> None:
    """Their channels have the former key, so that no ingress can connect."""
    bench.add("m")
    await bench.start_explicit("m")
    made = await bench.start_explicit(key=b"k" * 32)
    assert list(made.table.applications) == ["m:1@2"]
    assert bench.serve.running["m:1@2"].spec.key == b"k" * 32
    await until(lambda: bench.serve.deleted == ["m:1"])


async def test_failed_start_fails_the_health_check(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def listed() -> list[ModelApplication]:
        raise RuntimeError("no controller")

    monkeypatch.setattr(applications, "listed", listed)
    made = bench.begin()
    await made.check_health()
    await until(lambda: made._start is not None and made._start.done())
    with pytest.raises(RuntimeError, match="the repository manager could not start: no controller"):
        await made.check_health()


async def test_loads_succeed_without_the_serve_controller(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.add("m")
    made = await bench.start_explicit("m")

    async def running_replicas(application: str, deployment: str) -> int:
        raise RuntimeError("no controller")

    monkeypatch.setattr(applications, "running_replicas", running_replicas)
    await made.unload("m")
    assert await reason(made, "m") == "unloaded"
