"""The same name in two repositories."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.deployments.manager.manager_bench import Bench, load, load_error, states
from tests.unit.deployments.model_directories import add


async def test_model_in_two_repositories_fails_with_the_reason(bench: Bench, tmp_path: Path) -> None:
    bench.add("m")
    add(tmp_path / "more", "m")
    made = await bench.start(model_repository=[str(bench.repository), str(tmp_path / "more")])
    assert await made.index() == [("m", "", "UNAVAILABLE", "model appears in two or more repositories")]
    assert bench.serve.deployed == []


class TestNamespaces:
    """The same name in two repositories, with `--model-namespacing`."""

    @pytest.fixture
    def two(self, bench: Bench, tmp_path: Path) -> dict[str, Any]:
        bench.add("m")
        bench.add("only")
        add(tmp_path / "more", "m")
        repositories = [str(bench.repository), str(tmp_path / "more")]
        return {"model_repository": repositories, "model_namespacing": True}

    async def test_both_models_are_served(self, bench: Bench, two: dict[str, Any]) -> None:
        made = await bench.start(**two)
        one, other = two["model_repository"]
        assert await states(made) == [
            (f"{one}::m", "1", "READY"),
            (f"{one}::only", "1", "READY"),
            (f"{other}::m", "1", "READY"),
        ]
        assert len(set(bench.serve.deployed)) == 3
        directories = {running.spec.directory for running in bench.serve.running.values()}
        assert directories == {f"{one}/m", f"{one}/only", f"{other}/m"}

    async def test_load_and_unload_apply_to_every_namespace(self, bench: Bench, two: dict[str, Any]) -> None:
        made = await bench.start_explicit(**two)
        await load(made, "m")
        assert [state for _, _, state in await states(made)] == ["READY", "", "READY"]
        await made.unload("m")
        assert [state for _, _, state in await states(made)] == ["UNAVAILABLE", "", "UNAVAILABLE"]
        error = await load_error(made, "absent")
        assert error.message == "failed to load 'absent', failed to poll from model repository"

    async def test_start_loads_the_models_of_every_namespace(self, bench: Bench, two: dict[str, Any]) -> None:
        made = await bench.start_explicit("m", **two)
        assert [state for _, _, state in await states(made)] == ["READY", "", "READY"]

    async def test_restarted_manager_adopts_both(self, bench: Bench, two: dict[str, Any]) -> None:
        first = await bench.start(**two)
        again = await bench.start(**two)
        assert await states(again) == await states(first)
        assert (len(bench.serve.deployed), bench.serve.deleted) == (3, [])
