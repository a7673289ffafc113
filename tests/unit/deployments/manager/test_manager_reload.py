"""Loads of loaded models: reloads, added and removed versions, changed instances."""

import asyncio
from typing import Any

import msgspec
import pytest
from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import ErrorCode, InferError, internal
from app.routing.manager_client import LoadRequest
from app.routing.table import NO_VERSION, ModelState
from deployments.manager.manager import RepositoryManager
from deployments.spec import Description
from tests.unit.deployments.manager.manager_bench import Bench, load, load_error, states
from tests.unit.deployments.model_directories import CONFIG
from tests.waiting import let_run, until

ALL = "version_policy { all {} }\n"
TWO = "instance_group [ { count: 2 kind: KIND_CPU } ]\n"
THREE = TWO.replace("2", "3")


async def test_load_of_an_unchanged_model_deploys_nothing(bench: Bench) -> None:
    bench.add("m")
    made = await bench.start_explicit("m")
    await load(made, "m")
    assert bench.serve.deployed == ["m:1"]


async def test_reload_starts_beside_the_old_version_then_replaces_it(bench: Bench) -> None:
    bench.add("m")
    made = await bench.start_explicit("m")
    bench.add("m", CONFIG.replace("4", "8"))
    gate = bench.serve.gates["m"] = asyncio.Event()
    loading = asyncio.create_task(load(made, "m"))
    await until(lambda: bench.serve.deployed == ["m:1", "m:1@2"])
    assert await states(made) == [("m", "1", "READY")]
    assert list(made.table.applications) == ["m:1"]
    gate.set()
    await loading
    assert list(made.table.applications) == ["m:1@2"]
    await until(lambda: bench.serve.deleted == ["m:1"])
    assert list(made.lifecycle.loaded) == ["m:1@2"]


async def test_failed_reload_keeps_the_served_version(bench: Bench) -> None:
    bench.add("m")
    made = await bench.start_explicit("m")
    bench.add("m", CONFIG.replace("4", "8"))
    bench.serve.failures["m:1"] = "Internal: no such file"
    error = await load_error(made, "m")
    assert error.message == (
        "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: no such file;\n"
    )
    assert await states(made) == [("m", "1", "READY")]
    assert list(made.table.applications) == ["m:1"]
    await until(lambda: bench.serve.deleted == ["m:1@2"])


async def test_failed_reload_waits_for_the_other_versions(bench: Bench) -> None:
    """Otherwise the next load of the model would start while versions of this one still load."""
    bench.add("m", CONFIG + ALL)
    made = await bench.start_explicit("m")
    bench.add("m", CONFIG.replace("4", "8") + ALL, (1, 2))
    bench.serve.failures["m:1"] = "Internal: no such file"
    gates = {1: asyncio.Event(), 2: asyncio.Event()}
    deploy = made.lifecycle.deployer.deploy

    async def gated(candidate: Any, version: int, replicas: int = 0) -> Description:
        await gates[version].wait()
        return await deploy(candidate, version, replicas)

    made.lifecycle.deployer.deploy = gated  # type: ignore[method-assign]
    loading = asyncio.create_task(load_error(made, "m"))
    await asyncio.sleep(0)
    gates[1].set()
    await until(lambda: bench.serve.deleted == ["m:1@2"])
    await let_run()
    assert not loading.done()
    gates[2].set()
    assert "version 1 is at UNAVAILABLE state: Internal: no such file;\n" in (await loading).message
    assert await made.index() == [("m", "1", "READY", ""), ("m", "2", "UNAVAILABLE", "unloaded")]
    assert list(made.table.applications) == ["m:1"], "nothing is switched"
    await until(lambda: sorted(bench.serve.deleted) == ["m:1@2", "m:2"])


async def test_one_failed_version_fails_the_model(bench: Bench) -> None:
    bench.add("m", CONFIG + ALL, (1, 2, 3))
    bench.serve.failures.update({"m:2": "Internal: no such file", "m:3": "Internal: no memory"})
    made = await bench.start_explicit()
    error = await load_error(made, "m")
    assert error.message == (
        "load failed for model 'm': version 2 is at UNAVAILABLE state: Internal: no such file;"
        "version 3 is at UNAVAILABLE state: Internal: no memory;\n"
    )
    assert await made.index() == [
        ("m", "1", "UNAVAILABLE", "unloaded"),
        ("m", "2", "UNAVAILABLE", "Internal: no such file"),
        ("m", "3", "UNAVAILABLE", "Internal: no memory"),
    ]
    assert not made.table.ready and not made.table.all_ready
    with pytest.raises(InferError, match="'m' has no available versions"):
        made.table.resolve("m")
    await until(lambda: sorted(bench.serve.deleted) == ["m:1", "m:2", "m:3"])
    bench.serve.failures.clear()
    await load(made, "m")
    assert [state for _, _, state in await states(made)] == ["READY", "READY", "READY"]


async def test_reload_switches_no_version_before_all_are_there(bench: Bench) -> None:
    bench.add("m", CONFIG + ALL, (1, 2))
    made = await bench.start_explicit("m")
    bench.add("m", CONFIG.replace("4", "8") + ALL)
    bench.serve.failures["m:2"] = "Internal: no such file"
    await load_error(made, "m")
    assert await made.index() == [("m", "1", "READY", ""), ("m", "2", "READY", "")]
    assert sorted(made.table.applications) == ["m:1", "m:2"]
    await until(lambda: sorted(bench.serve.deleted) == ["m:1@2", "m:2@2"])
    assert sorted(made.lifecycle.loaded) == ["m:1", "m:2"]


async def test_instances_do_not_change_when_a_version_fails(bench: Bench) -> None:
    bench.add("m", CONFIG + TWO)
    made = await bench.start_explicit("m")
    bench.add("m", CONFIG + THREE + ALL, (1, 2))
    bench.serve.failures["m:2"] = "Internal: no such file"
    await load_error(made, "m")
    assert not bench.serve.updated and made.lifecycle.entries["m"][1].state is ModelState.READY


async def test_partial_load_serves_the_versions_that_load(bench: Bench) -> None:
    bench.add("m", CONFIG + ALL, (1, 2))
    made = await bench.start_explicit("m", allow_partial_load=True)
    bench.add("m", CONFIG.replace("4", "8") + ALL, (3,))
    bench.serve.failures["m:2"] = "Internal: no such file"
    error = await load_error(made, "m")
    assert "version 2 is at UNAVAILABLE state" in error.message
    assert sorted(made.table.applications) == ["m:1@2", "m:2", "m:3"]
    assert [state for _, _, state in await states(made)] == ["READY", "READY", "READY"]


async def test_replaced_version_out_of_policy_ends_in_the_background(bench: Bench) -> None:
    """The load is answered, the next one can begin, and the server is ready."""
    bench.add("m")
    made = await bench.start_explicit("m")
    bench.serve.may_delete.clear()
    bench.add("m", versions=(2,))
    await load(made, "m")
    assert await states(made) == [("m", "1", "UNLOADING"), ("m", "2", "READY")]
    assert made.table.all_ready
    bench.add("m", CONFIG + ALL)
    await load(made, "m")
    assert sorted(made.table.applications) == ["m:1@2", "m:2"]
    bench.serve.may_delete.set()
    await until(lambda: "m:1" not in bench.serve.running)
    await let_run()
    assert await states(made) == [("m", "1", "READY"), ("m", "2", "READY")], "of the later load"


async def test_failed_new_version_keeps_the_old_one_served(bench: Bench) -> None:
    bench.add("m")
    made = await bench.start_explicit("m")
    bench.add("m", CONFIG, (2,))
    bench.serve.failures["m:2"] = "Internal: no such file"
    error = await load_error(made, "m")
    assert error.code is ErrorCode.INVALID_ARG
    assert error.message == (
        "load failed for model 'm': version 2 is at UNAVAILABLE state: Internal: no such file;\n"
    )
    assert await states(made) == [("m", "1", "READY"), ("m", "2", "UNAVAILABLE")]
    bench.serve.failures.clear()
    await load(made, "m")
    assert await states(made) == [("m", "1", "UNAVAILABLE"), ("m", "2", "READY")]
    assert "m:1" in bench.serve.deleted


async def test_version_policy_retires_the_old_version(bench: Bench) -> None:
    bench.add("m", CONFIG + "version_policy { all {} }", (1, 2))
    made = await bench.start_explicit("m")
    bench.add("m", CONFIG)
    await load(made, "m")
    assert await states(made) == [("m", "1", "UNAVAILABLE"), ("m", "2", "READY")]
    assert (sorted(bench.serve.deployed), bench.serve.deleted) == (["m:1", "m:2"], ["m:1"])


async def test_a_load_is_logged_once_with_its_new_versions(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    bench.add("m", CONFIG + "version_policy { specific { versions: [ 1, 2 ] } }", (1, 2, 3))
    made = await bench.start_explicit("m")
    for versions in ("1, 2, 3", "3"):
        bench.add("m", CONFIG + f"version_policy {{ specific {{ versions: [ {versions} ] }} }}", (1, 2, 3))
        await load(made, "m")
    assert [each.message for each in caplog.records if "successfully loaded" in each.message] == [
        "successfully loaded 'm' versions 1, 2",
        "successfully loaded 'm' version 3",
        "successfully loaded 'm'",  # versions were unloaded
    ]


async def test_unreadable_model_leaves_no_index_row(bench: Bench) -> None:
    bench.add("m", "no configuration")
    made = await bench.start_explicit("m")
    assert await states(made) == [("m", "", "")]
    assert made.table.entries[0].version == NO_VERSION
    bench.add("m")
    await load(made, "m")
    assert await states(made) == [("m", "1", "READY")]
    await made.unload("m")
    assert await states(made) == [("m", "1", "UNAVAILABLE")]


def counts(made: RepositoryManager, name: str = "m") -> list[int]:
    """Return the count of the first instance group of each version, as clients see it."""
    entries = made.lifecycle.versions(name)
    return [mc.ModelConfig.FromString(entry.config).instance_group[0].count for entry in entries]


async def test_change_of_instances_deploys_nothing(bench: Bench) -> None:
    bench.add("m", CONFIG + TWO)
    made = await bench.start_explicit("m")
    bench.add("m", CONFIG + THREE)
    await load(made, "m")
    assert (bench.serve.deployed, bench.serve.deleted) == (["m:1"], [])
    assert [(spec.application, spec.revision) for spec in bench.serve.updated] == [("m:1", 1)]
    assert counts(made) == [3]
    await load(made, "m")
    assert len(bench.serve.updated) == 1, "nothing changed again"
    bench.add("m", CONFIG + TWO)
    await load(made, "m")
    assert [spec.revision for spec in bench.serve.updated] == [1, 2]
    assert counts(made) == [2]


async def test_change_of_the_complete_configuration_updates_instances(bench: Bench) -> None:
    """Clients receive the complete configuration, change the count and send it back."""
    bench.add("m", CONFIG + TWO)
    made = await bench.start_explicit("m")
    (entry,) = made.lifecycle.versions("m")
    complete = mc.ModelConfig.FromString(entry.config)
    complete.output.add(name="FOUND", data_type=mc.TYPE_FP32, dims=[1])
    made.lifecycle.set_entry(msgspec.structs.replace(entry, config=complete.SerializeToString()))
    complete.instance_group[0].count = 5
    config = json_format.MessageToJson(complete, preserving_proto_field_name=True)
    await made.load(LoadRequest("m", config))
    assert bench.serve.deployed == ["m:1"] and counts(made) == [5]


async def test_instances_and_versions_change_together(bench: Bench) -> None:
    bench.add("m", CONFIG + TWO)
    made = await bench.start_explicit("m")
    bench.add("m", CONFIG + THREE + "version_policy { all {} }", (1, 2))
    await load(made, "m")
    assert bench.serve.deployed == ["m:1", "m:2"]
    assert [spec.application for spec in bench.serve.updated] == ["m:1"]
    assert counts(made) == [3, 3]


async def test_change_beyond_instances_reloads(bench: Bench) -> None:
    bench.add("m", CONFIG + TWO)
    made = await bench.start_explicit("m")
    bench.add("m", CONFIG.replace("4", "8") + THREE)
    await load(made, "m")
    assert bench.serve.deployed == ["m:1", "m:1@2"] and not bench.serve.updated


async def test_refused_change_of_instances_keeps_the_served_ones(bench: Bench) -> None:
    bench.add("m", CONFIG + TWO)
    made = await bench.start_explicit("m")
    bench.serve.failures["m:1"] = internal("no memory left")
    bench.add("m", CONFIG + THREE)
    error = await load_error(made, "m")
    assert error.code is ErrorCode.INVALID_ARG
    assert error.message == (
        "load failed for model 'm': version 1 is at READY state: Internal: no memory left;\n"
    )
    assert await states(made) == [("m", "1", "READY")]
    assert counts(made) == [2] and not bench.serve.deleted
    bench.serve.failures.clear()
    await load(made, "m")
    assert counts(made) == [3] and bench.serve.deployed == ["m:1"]


async def test_restarted_manager_knows_changed_instances(bench: Bench) -> None:
    bench.add("m", CONFIG + TWO)
    made = await bench.start_explicit("m")
    bench.add("m", CONFIG + THREE)
    await load(made, "m")
    again = await bench.start()
    assert counts(again) == [3]
    assert bench.serve.deployed == ["m:1"] and len(bench.serve.updated) == 1


async def test_new_version_policy_is_published_without_a_load(bench: Bench) -> None:
    bench.add("m", CONFIG + "version_policy { all {} }", (1, 2))
    made = await bench.start_explicit("m")
    bench.add("m", CONFIG + "version_policy { specific { versions: [ 2 ] } }")
    await load(made, "m")
    assert sorted(bench.serve.deployed) == ["m:1", "m:2"]
    (entry,) = made.table.applications.values()
    assert list(entry.model_config.version_policy.specific.versions) == [2]


async def test_failed_reload_of_a_served_model_is_counted(bench: Bench) -> None:
    bench.add("m")
    made = await bench.start_explicit("m")
    bench.add("m", "no configuration")
    await load_error(made, "m")
    await load_error(made, "m")
    await load_error(made, "a name that a client made up")
    await until(lambda: made.table.load_failures == {"m": 2})
    await let_run()
    assert made.table.load_failures == {"m": 2}
    assert await states(made) == [("m", "1", "READY")]
