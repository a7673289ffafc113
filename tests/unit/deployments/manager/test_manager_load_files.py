"""Load requests with the model's files."""

import asyncio
from pathlib import Path

import pytest

from app.core.errors import InferError
from app.routing.manager_client import LoadRequest
from deployments.manager.manager import RepositoryManager
from tests.unit.deployments.manager.manager_bench import Bench, load, states

OVERRIDE = '{"backend": "identity", "max_batch_size": 2}'


async def load_files(made: RepositoryManager, name: str, config: str | None, *files: str) -> None:
    await asyncio.wait_for(made.load(LoadRequest(name, config, dict.fromkeys(files, b"x"))), 60)


async def test_files_of_a_request_are_served_and_reverted(bench: Bench) -> None:
    bench.add("m", versions=(3,))
    made = await bench.start_explicit("m")
    await load_files(made, "m", OVERRIDE, "1/model", "2/model")
    assert await states(made) == [("m", "2", "READY"), ("m", "3", "UNAVAILABLE")]
    spec = bench.serve.running["m:2"].spec
    directory = Path(spec.directory)
    assert sorted(path.name for path in directory.iterdir()) == ["1", "2"], "nothing of the repository's copy"
    assert directory.stat().st_mode & 0o077 == 0
    await load_files(made, "m", OVERRIDE, "1/model", "2/model")
    assert bench.serve.deployed == ["m:3", "m:2"], "a repeated request changes nothing"
    await load(made, "m")
    assert await states(made) == [("m", "2", "UNAVAILABLE"), ("m", "3", "READY")]
    assert not directory.exists()


async def test_files_make_a_model_that_is_in_no_repository(bench: Bench) -> None:
    made = await bench.start_explicit()
    await load_files(made, "fresh", OVERRIDE, "1/model")
    assert await states(made) == [("fresh", "1", "READY")]
    directory = Path(bench.serve.running["fresh:1"].spec.directory)
    await made.unload("fresh")
    assert not directory.exists()


@pytest.mark.parametrize(
    ("config", "file", "text"),
    [
        (None, "1/model", "Load parameter 'config' must be specified for model file override"),
        (OVERRIDE, "../../etc/x", "must stay within model directory."),
        ("{", "1/model", "Invalid config override: "),
    ],
)
async def test_invalid_files_are_refused(bench: Bench, config: str | None, file: str, text: str) -> None:
    bench.add("m")
    made = await bench.start_explicit("m")
    with pytest.raises(InferError) as caught:
        await load_files(made, "m", config, file)
    assert caught.value.message.startswith("failed to load 'm', failed to poll from model repository: ")
    assert text in caught.value.message
    assert await states(made) == [("m", "1", "READY")]
    assert bench.serve.deployed == ["m:1"]


async def test_files_without_a_version_are_refused(bench: Bench) -> None:
    bench.add("m")
    made = await bench.start_explicit("m")
    text = (
        "load failed for model 'm': at least one version must be available under the version policy of model"
    )
    with pytest.raises(InferError, match=text):
        await load_files(made, "m", OVERRIDE, "model")
    assert await states(made) == [("m", "1", "READY")]


async def test_files_survive_a_restart_of_the_manager(bench: Bench) -> None:
    bench.add("m")
    first = await bench.start_explicit("m")
    await load_files(first, "m", OVERRIDE, "1/model")
    directory = Path(bench.serve.running["m:1@2"].spec.directory)
    second = await bench.start_explicit("m")
    assert list(second.table.applications) == ["m:1@2"]
    first._overrides.retain([])
    assert directory.exists(), "the second manager leases it"
    await second.unload("m")
    assert not directory.exists()
