"""Models that a client has loaded from directories outside the repositories."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import ErrorCode, InferError
from tests.unit.deployments.manager.manager_bench import Bench, load_error, states
from tests.unit.deployments.model_directories import add


async def register(made: Any, name: str, directory: Path) -> None:
    await asyncio.wait_for(made.load(name, None, {}, "", str(directory)), 10)


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


async def test_a_failed_load_leaves_nothing_registered(bench: Bench, tmp_path: Path) -> None:
    made = await bench.start_explicit()
    (tmp_path / "hash" / "model").mkdir(parents=True)
    (tmp_path / "hash" / "model" / "config.pbtxt").write_text("backend: ")
    for _ in range(2):
        with pytest.raises(InferError) as refused:
            await register(made, "hash", tmp_path / "hash" / "model")
        assert refused.value.code is not ErrorCode.ALREADY_EXISTS
