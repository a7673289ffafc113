"""The repository manager over a fake of Serve: its state, tables, deployments and deletions."""

import asyncio
import os
from typing import Any

import pytest

from app.core.errors import ErrorCode, InferError, internal
from app.routing.manager_client import LoadRequest
from app.routing.table import ModelState
from app.routing.table_bytes import decode_table
from tests.hints import hint, tritons
from tests.unit.deployments.manager.manager_bench import Bench, load, load_error, reason, started, states
from tests.unit.deployments.model_directories import CONFIG
from tests.waiting import let_run, until


async def test_start_loads_all_models_concurrently(bench: Bench) -> None:
    names = [f"m{number}" for number in range(6)]
    gate = asyncio.Event()
    for name in names:
        bench.add(name)
        bench.serve.gates[name] = gate
    made = bench.begin(model_load_thread_count=4)
    await made.check_health()
    await until(lambda: bench.serve.loading == 4)
    await let_run()
    table = decode_table(await made.status())
    assert not table.initialised
    gate.set()
    await started(made)
    assert bench.serve.most_loading == 4
    assert await states(made) == [(name, "1", "READY") for name in names]
    assert made.table.initialised and made.table.all_ready
    assert sorted(bench.serve.deployed) == [f"{name}:1" for name in names]


async def test_server_is_not_ready_before_every_ingress_routes_to_its_models(bench: Bench) -> None:
    bench.add("m")
    gate = bench.serve.gates["m"] = asyncio.Event()
    made = bench.begin()
    ingress = bench.ingress(made)
    await until(lambda: bench.serve.loading == 1 and ingress.table.number > 0)
    ingress.let_apply.clear()
    gate.set()
    await until(lambda: "m:1" in ingress.received[-1].applications)
    await let_run()
    assert not made.table.initialised, "another ingress on the same port would answer that it is loading"
    ingress.let_apply.set()
    await started(made)
    assert ingress.table.initialised
    (before, *_) = [table for table in ingress.received if table.applications]
    assert not before.initialised


async def test_failing_model_does_not_affect_others(bench: Bench) -> None:
    for name in ("dead", "fails", "good", "odd", "raises"):
        bench.add(name)
    bench.add("unreadable", "no configuration")
    bench.serve.failures.update(
        {
            "dead:1": RuntimeError("the actor died"),
            "fails:1": "Internal: no such file",
            "raises:1": internal("the replica could not start"),
        }
    )
    made = await bench.start()
    assert [row for row in await states(made) if row[2] == "READY"] == [
        ("good", "1", "READY"),
        ("odd", "1", "READY"),
    ]
    assert await reason(made, "fails") == "Internal: no such file"
    assert await reason(made, "dead") == "Internal: RuntimeError: the actor died"
    assert await reason(made, "raises") == "Internal: the replica could not start"
    assert (await reason(made, "unreadable")).startswith(
        "Internal: failed to load 'unreadable', failed to poll"
    )
    table = made.table
    assert table.initialised and not table.all_ready
    assert table.load_failures == dict.fromkeys(("dead", "fails", "raises", "unreadable"), 1)
    await until(lambda: sorted(bench.serve.deleted) == ["dead:1", "fails:1", "raises:1"])


async def test_start_survives_an_unexpected_error(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.add("bad")
    bench.add("good")
    made = bench.begin()
    candidate = made._catalog.candidate

    def read(name: str, override: str | None, bundle: Any) -> Any:
        if name == "bad":
            raise PermissionError(13, "Permission denied")
        return candidate(name, override)

    monkeypatch.setattr(made._catalog, "candidate", read)
    await made.check_health()
    await started(made)
    assert await states(made) == [("bad", "", "UNAVAILABLE"), ("good", "1", "READY")]
    assert "Permission denied" in await reason(made, "bad")


async def test_load_times_out(bench: Bench) -> None:
    bench.add("slow")
    bench.add("good")
    bench.serve.gates["slow"] = asyncio.Event()
    made = await bench.start(model_load_timeout_secs=1)
    assert await states(made) == [("good", "1", "READY"), ("slow", "1", "UNAVAILABLE")]
    assert await reason(made, "slow") == "Internal: not loaded within 1 s (model_load_timeout_secs)"
    await until(lambda: bench.serve.deleted == ["slow:1"])


async def test_failed_load_is_retried(bench: Bench) -> None:
    bench.add("m")
    bench.serve.failures["m:1"] = "Internal: no such file"
    made = await bench.start(model_load_retry_count=2)
    assert await states(made) == [("m", "1", "UNAVAILABLE")]
    assert len(bench.serve.deployed) == 3
    await until(lambda: bench.serve.deleted == bench.serve.deployed)


async def test_model_without_a_backend_starts_no_replica(bench: Bench) -> None:
    bench.add("m", 'backend: "onnxrutime"')
    made = await bench.start(model_load_retry_count=2)
    assert await states(made) == [("m", "1", "UNAVAILABLE")]
    assert "Did you mean 'onnxruntime'?" in await reason(made, "m")
    assert (bench.serve.deployed, bench.serve.deleted) == ([], [])


async def test_loads_are_refused_outside_explicit_mode(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    made = await bench.start()
    for work in (made.load(LoadRequest("m")), made.unload("m")):
        with pytest.raises(InferError) as caught:
            await work
        assert caught.value.code is ErrorCode.UNAVAILABLE
        text = "explicit model load / unload is not allowed if polling is enabled"
        assert tritons(caught.value.message) == text
        assert "--model-control-mode=none; it loads on request with =explicit" in hint(caught.value.message)
    assert caplog.text.count("needs --model-control-mode=explicit") == 2


async def test_missing_repository_leaves_a_server_that_is_not_ready(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.repository.rmdir()
    made = await bench.start_explicit(exit_on_error=False)
    assert made.table.failed and not made.table.initialised
    assert f"Internal: failed to open directory {bench.repository}" in caplog.text
    for work in (made.index(), made.load(LoadRequest("m")), made.unload("m")):
        with pytest.raises(InferError) as caught:
            await work
        assert (caught.value.code, caught.value.message) == (ErrorCode.UNAVAILABLE, "Server not ready")


async def test_unreadable_models_do_not_make_the_server_unready(bench: Bench) -> None:
    bench.add("good")
    bench.add("odd", "no configuration")
    (bench.repository / "empty").mkdir()
    made = await bench.start(exit_on_error=False)
    assert made.table.all_ready and not made.table.all_loaded
    assert await states(made) == [("empty", "", ""), ("good", "1", "READY"), ("odd", "", "")]


async def test_unload_after_the_start_does_not_make_the_start_a_failed_one(bench: Bench) -> None:
    """Who started the server may look only then whether it is to exit."""
    bench.add("m")
    made = await bench.start_explicit("m")
    assert made.table.all_loaded
    bench.serve.may_delete.clear()
    unloading = asyncio.create_task(made.unload("m"))
    await until(lambda: made.table.entries[0].state is ModelState.UNLOADING)
    assert made.table.all_loaded
    bench.add("bad")
    bench.serve.failures["bad:1"] = "Internal: no such file"
    await load_error(made, "bad")
    assert made.table.all_loaded and not made.table.all_ready
    bench.serve.may_delete.set()
    await unloading


async def test_model_without_a_version_makes_the_server_unready(bench: Bench) -> None:
    bench.add("none", versions=())
    made = await bench.start(exit_on_error=False)
    assert not made.table.all_ready
    with pytest.raises(InferError, match="'none' has no available versions"):
        made.table.resolve("none")


async def test_explicit_load_unload_and_load_again(bench: Bench) -> None:
    bench.add("m")
    made = await bench.start_explicit()
    assert await states(made) == [("m", "", "")]
    await load(made, "m")
    assert await states(made) == [("m", "1", "READY")]
    await made.unload("m")
    assert await made.index() == [("m", "1", "UNAVAILABLE", "unloaded")]
    assert bench.serve.deleted == ["m:1"]
    await load(made, "m")
    assert await states(made) == [("m", "1", "READY")]
    assert bench.serve.deployed == ["m:1", "m:1"]
    assert list(made.lifecycle.loaded) == ["m:1"]


async def test_names_of_applications_are_used_again_once_these_are_gone(bench: Bench) -> None:
    """Ray keeps something of each name for ever."""
    bench.add("m")
    made = await bench.start_explicit("m")
    for content in range(5):
        bench.add("m", CONFIG.replace("4", str(10 + content)))
        await load(made, "m")
        await until(lambda: len(bench.serve.running) == 1)
    assert bench.serve.deployed == ["m:1", "m:1@2"] * 3
    bench.serve.may_delete.clear()
    for content in range(2):
        bench.add("m", CONFIG.replace("4", str(20 + content)))
        await load(made, "m")
    assert bench.serve.deployed[-2:] == ["m:1", "m:1@3"], "m:1@2 still drains"
    bench.serve.deletions_fail = True
    bench.serve.may_delete.set()
    await let_run()
    bench.add("m", CONFIG.replace("4", "30"))
    await load(made, "m")
    assert bench.serve.deployed[-1] == "m:1@4", "nobody knows what became of the others"


async def test_second_unload_does_nothing(bench: Bench) -> None:
    bench.add("m")
    made = await bench.start_explicit("m")
    await made.unload("m")
    number = made.table.number
    await made.unload("m")
    await made.unload("nowhere")
    assert made.table.number == number
    assert bench.serve.deleted == ["m:1"]


async def test_load_returns_when_the_ingress_routes_by_it(bench: Bench) -> None:
    bench.add("m")
    made = await bench.start_explicit()
    ingress = bench.ingress(made)
    await until(lambda: ingress.table.number == made.table.number)
    ingress.let_apply.clear()
    loading = asyncio.create_task(load(made, "m"))
    await until(lambda: bool(ingress.received) and "m:1" in ingress.received[-1].applications)
    await let_run()
    assert not loading.done()
    ingress.let_apply.set()
    await loading
    assert "m:1" in ingress.table.applications


async def test_unload_publishes_unloading_state_first(bench: Bench) -> None:
    bench.add("m")
    made = await bench.start_explicit("m")
    ingress = bench.ingress(made)
    await until(lambda: "m:1" in ingress.table.applications)
    ingress.let_apply.clear()
    unloading = asyncio.create_task(made.unload("m"))
    await until(lambda: ingress.received[-1].entries[0].state is ModelState.UNLOADING)
    await let_run()
    assert bench.serve.deleted == [], "deleted while an ingress still routes to it"
    assert await states(made) == [("m", "1", "UNLOADING")]
    ingress.let_apply.set()
    await unloading
    assert bench.serve.deleted == ["m:1"]
    assert ingress.table.entries[0].state is ModelState.UNAVAILABLE
    assert ingress.table.all_ready, "a deliberate unload does not make the server unready"


async def test_unknown_names_leave_no_locks_behind(bench: Bench) -> None:
    made = await bench.start_explicit()
    for number in range(50):
        await load_error(made, f"nowhere{number}")
        await made.unload(f"nowhere{number}")
    await load_error(made, "../" * 1000)
    assert (
        len(made.lifecycle.locks),
        made.lifecycle.entries,
        made.lifecycle.deployer.applications,
        made.lifecycle.loaded,
    ) == (0, {}, set(), {})


async def test_operations_on_one_model_are_serialized(bench: Bench) -> None:
    bench.add("m")
    bench.add("n")
    made = await bench.start_explicit()
    gate = bench.serve.gates["m"] = asyncio.Event()
    first = asyncio.create_task(load(made, "m"))
    await until(lambda: bench.serve.deployed == ["m:1"])
    second = asyncio.create_task(load(made, "m"))
    await until(lambda: made.lifecycle.locks.users("m") == 2)
    third = asyncio.create_task(made.unload("m"))
    await load(made, "n")
    assert not (second.done() or third.done())
    gate.set()
    await asyncio.gather(first, second, third)
    assert bench.serve.deployed == ["m:1", "n:1"]
    assert await reason(made, "m") == "unloaded"
    assert len(made.lifecycle.locks) == 0


async def test_why_a_replica_is_not_started_yet_is_shown(bench: Bench) -> None:
    bench.add("m")
    made = await bench.start_explicit("m")
    ingress = bench.ingress(made)
    await made.explain("m:1", "started again in 2 s")
    await until(lambda: ingress.table.number == made.table.number)
    assert [each.reason for each in ingress.table.ready] == ["started again in 2 s"]
    await made.explain("m:1", "")
    await made.explain("gone:1", "x")
    assert await reason(made, "m") == ""


async def test_cancelled_load_releases_its_lock(bench: Bench) -> None:
    bench.add("m")
    made = await bench.start_explicit()
    bench.serve.gates["m"] = asyncio.Event()
    loading = asyncio.create_task(load(made, "m"))
    await until(lambda: bench.serve.loading == 1)
    loading.cancel()
    await asyncio.wait([loading])
    assert len(made.lifecycle.locks) == 0


async def test_config_override_is_kept_until_a_file_is_written(bench: Bench) -> None:
    directory = bench.add("m")
    made = await bench.start_explicit("m")
    await load(made, "m", '{"backend": "identity", "max_batch_size": 2}')
    (entry,) = made.table.applications.values()
    assert (entry.application, entry.model_config.max_batch_size) == ("m:1@2", 2)
    await load(made, "m")
    (entry,) = made.table.applications.values()
    assert (entry.application, entry.model_config.max_batch_size) == ("m:1@2", 2)
    os.utime(directory / "config.pbtxt", (1, 1))
    await load(made, "m")
    (entry,) = made.table.applications.values()
    assert entry.model_config.max_batch_size == 4


async def test_config_override_is_kept_by_a_restarted_manager(bench: Bench) -> None:
    directory = bench.add("m")
    made = await bench.start_explicit("m")
    await load(made, "m", '{"backend": "identity", "max_batch_size": 2}')
    again = await bench.start_explicit("m")
    await load(again, "m")
    (entry,) = again.table.applications.values()
    assert (entry.application, entry.model_config.max_batch_size) == ("m:1@2", 2)
    os.utime(directory / "config.pbtxt", (1, 1))
    await load(again, "m")
    (entry,) = again.table.applications.values()
    assert entry.model_config.max_batch_size == 4


async def test_unload_drops_a_config_override(bench: Bench) -> None:
    bench.add("m")
    made = await bench.start_explicit("m")
    await load(made, "m", '{"backend": "identity", "max_batch_size": 2}')
    await made.unload("m")
    await load(made, "m")
    (entry,) = made.table.applications.values()
    assert entry.model_config.max_batch_size == 4


async def test_refused_load_is_logged_in_one_line(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.add("m")
    made = await bench.start_explicit()
    with pytest.raises(InferError) as caught:
        await load(made, "m", "{")
    reason = caught.value.message.removeprefix("failed to load 'm', failed to poll from model repository: ")
    assert reason.startswith("Invalid config override: ")
    assert [record.getMessage() for record in caplog.records] == [
        f"Poll failed for model directory 'm': {reason}"
    ]
    caplog.clear()
    await load_error(made, "nowhere")
    assert [record.getMessage() for record in caplog.records] == [
        "failed to poll model 'nowhere': model not found in any model repository."
    ]
    caplog.clear()
    bench.serve.failures["m:1"] = "Internal: no such file"
    await load_error(made, "m")
    assert [record.getMessage() for record in caplog.records] == [
        "failed to load 'm' version 1: Internal: no such file"
    ]


async def test_absent_version_is_logged_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.add("m", CONFIG + "version_policy { specific { versions: [ 1, 7 ] } }")
    made = await bench.start_explicit()
    await load(made, "m")
    assert caplog.text.count("version 7 is specified for model 'm'") == 1
