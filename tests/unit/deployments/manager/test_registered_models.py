"""Models that a client has loaded from directories outside the repositories."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import ErrorCode, InferError
from app.routing.manager_client import LoadRequest
from tests.unit.deployments.manager.manager_bench import Bench, load, load_error, states
from tests.unit.deployments.model_directories import add
from tests.unit.ensembles import ensemble, model, step


async def register(made: Any, name: str, directory: Path) -> None:
    await asyncio.wait_for(made.load(LoadRequest(name, directory=str(directory))), 60)


async def test_a_registered_model_is_served_under_its_name(bench: Bench, tmp_path: Path) -> None:
    add(tmp_path / "hash", "model")
    config = tmp_path / "hash" / "model" / "config.pbtxt"
    config.write_text(f'name: "any" {config.read_text()}')
    made = await bench.start_explicit()
    await register(made, "hash", tmp_path / "hash" / "model")
    assert await states(made) == [("hash", "1", "READY")]
    assert await made.registered() == {"hash": str(tmp_path / "hash" / "model")}
    with pytest.raises(InferError, match="has already been registered") as refused:
        await register(made, "hash", tmp_path / "hash" / "model")
    assert refused.value.code is ErrorCode.ALREADY_EXISTS
    await made.unload("hash")
    assert await made.registered() == {}
    assert "failed to poll" in (await load_error(made, "hash")).message, "unloaded, it is not registered"


@pytest.mark.parametrize("folder", ["m", "model"])
async def test_a_registered_model_goes_before_one_of_a_repository(
    bench: Bench, tmp_path: Path, folder: str
) -> None:
    """As in Triton, which asks its registered models first."""
    bench.add("m")
    made = await bench.start_explicit("m")
    add(tmp_path / "hash", folder, versions=(1, 2))
    await register(made, "m", tmp_path / "hash" / folder)
    assert await states(made) == [("m", "1", "UNAVAILABLE"), ("m", "2", "READY")]
    await made.unload("m")
    await load(made, "m")
    assert ("m", "1", "READY") in await states(made), "unloaded, it is the repository's again"


async def test_each_has_a_namespace_of_its_own(bench: Bench, tmp_path: Path) -> None:
    for name in ("one", "two"):
        add(tmp_path / name, "model")
    made = await bench.start_explicit(model_namespacing=True)
    for name in ("one", "two"):
        await register(made, name, tmp_path / name / "model")
    assert [state for _, _, state in await states(made)] == ["READY", "READY"]
    assert sorted(await made.registered()) == ["one", "two"]
    await made.unload("one")
    assert list(await made.registered()) == ["two"]


@pytest.mark.parametrize("name", ["hash", "e"])
async def test_an_ensemble_is_listed_with_the_directory_it_was_loaded_from(
    bench: Bench, tmp_path: Path, name: str
) -> None:
    add(tmp_path / "models", "a", model())
    add(tmp_path / "models", "e", ensemble(step({"x": "IN"}, {"y": "OUT"}, "a")))
    made = await bench.start_explicit()
    await register(made, name, tmp_path / "models")
    assert await made.registered() == {name: str(tmp_path / "models")}, "not its step"
    again = await bench.start_explicit()
    assert await again.registered() == {name: str(tmp_path / "models")}
    await made.unload(name, unload_dependents=True)
    assert await made.registered() == {} and "'READY'" not in str(await states(made))


async def test_a_model_whose_folder_has_its_name_is_listed(bench: Bench, tmp_path: Path) -> None:
    add(tmp_path / "hash", "model")
    made = await bench.start_explicit()
    await register(made, "model", tmp_path / "hash" / "model")
    assert await made.registered() == {"model": str(tmp_path / "hash" / "model")}


async def test_a_failed_load_leaves_nothing_registered(bench: Bench, tmp_path: Path) -> None:
    made = await bench.start_explicit()
    (tmp_path / "hash" / "model").mkdir(parents=True)
    (tmp_path / "hash" / "model" / "config.pbtxt").write_text("backend: ")
    for _ in range(2):
        with pytest.raises(InferError) as refused:
            await register(made, "hash", tmp_path / "hash" / "model")
        assert refused.value.code is not ErrorCode.ALREADY_EXISTS
        assert await made.registered() == {}


async def test_a_restarted_manager_knows_them(bench: Bench, tmp_path: Path) -> None:
    add(tmp_path / "hash", "model")
    made = await bench.start_explicit()
    await register(made, "hash", tmp_path / "hash" / "model")
    again = await bench.start_explicit()
    assert await states(again) == [("hash", "1", "READY")]
    with pytest.raises(InferError, match="has already been registered"):
        await register(again, "hash", tmp_path / "hash" / "model")
    await load(again, "hash", '{"backend": "identity", "max_batch_size": 2}')  # it finds the directory
    (entry,) = again.table.applications.values()
    assert (entry.name, entry.model_config.max_batch_size) == ("hash", 2)
    await again.unload("hash")
    assert not bench.serve.store.keys("registered/")
    third = await bench.start_explicit()
    assert "failed to poll" in (await load_error(third, "hash")).message


async def test_a_restarted_manager_knows_an_ensemble_outside_the_repositories(
    bench: Bench, tmp_path: Path
) -> None:
    add(tmp_path / "hash", "a", model())
    add(tmp_path / "hash", "e", ensemble(step({"x": "IN"}, {"y": "OUT"}, "a")))
    made = await bench.start_explicit()
    await register(made, "hash", tmp_path / "hash")
    again = await bench.start_explicit()
    assert await states(again) == await states(made) == [("a", "1", "READY"), ("hash", "1", "READY")]
    assert [each.name for each in again.table.entries if each.ensemble] == ["hash"]


async def test_a_new_server_on_the_same_cluster_has_none(bench: Bench, tmp_path: Path) -> None:
    add(tmp_path / "hash", "model")
    made = await bench.start_explicit()
    await register(made, "hash", tmp_path / "hash" / "model")
    bench.serve.running.clear()  # `serve shutdown`, which leaves the cluster's store
    again = await bench.start_explicit()
    assert await again.registered() == {} and not bench.serve.store.keys("registered/")
    await register(again, "hash", tmp_path / "hash" / "model")
