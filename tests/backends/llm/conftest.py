"""Models of `write_model`, served in the environment of the packaged backend."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backends.base import Model
from tests.backends.llm.serving import Load
from tests.backends.packaged import serve_model, write_models
from tests.unit.backend_harness import Served, config


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_models("llm", Path(__file__).with_name("write_model.py"), root)
    return root


@pytest.fixture(scope="module")
def load(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    loaded: list[Callable[[], None]] = []

    def load_one(name: str, arguments: dict[str, Any] | None = None) -> Served:
        folder = repository / name
        if arguments is not None:
            folder = tmp_path_factory.mktemp("changed") / name
            shutil.copytree(repository / name, folder)
            (folder / "1" / "model.json").write_text(json.dumps(arguments))
        model = Model(config(f'name: "{name}" backend: "llm"'), 1, folder)
        return serve_model("llm", model, loaded.append, completed=True)

    yield load_one
    for close in reversed(loaded):
        close()


@pytest.fixture(scope="module", params=["transformers", "openvino"])
def small(load: Load, request: pytest.FixtureRequest) -> Served:
    """Each test is of both engines: they have the same texts, errors and bounds."""
    return load("small", {"model": "weights", "max_num_seqs": 4, "engine": request.param})


@pytest.fixture(scope="module")
def expected(repository: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((repository / "small" / "expected.json").read_text())
    return found
