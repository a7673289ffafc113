"""Where a custom batching strategy is found, and what is refused."""

from pathlib import Path

import pytest

from app.core.errors import ErrorCode, InferError
from backends.base import Model
from backends.registry.strategies import find_strategy
from backends.strategy import BatchStrategy
from tests.unit.backend_harness import config

SOURCE = """
from backends.strategy import BatchStrategy

class TritonBatchStrategy(BatchStrategy):
    where = "{where}"

    def batcher_initialize(self, model):
        self.model = model.name

    def include_request(self, request, batch):
        return True
"""


@pytest.fixture
def model(tmp_path: Path) -> Model:
    (tmp_path / "repository" / "m" / "1").mkdir(parents=True)
    (tmp_path / "backends" / "identity").mkdir(parents=True)
    return Model(config('name: "m" backend: "identity"'), 1, tmp_path / "repository" / "m")


def write(folder: Path, where: str, name: str = "batchstrategy.py") -> None:
    (folder / name).write_text(SOURCE.format(where=where))


def find(model: Model) -> BatchStrategy | None:
    return find_strategy(model, model.directory.parent.parent / "backends")


def name(model: Model, path: str) -> None:
    model.config.parameters["TRITON_BATCH_STRATEGY_PATH"].string_value = path


def where(model: Model) -> str:
    found = find(model)
    assert found is not None and vars(found)["model"] == "m"
    return str(type(found).__dict__["where"])


def test_places_in_triton_order(model: Model) -> None:
    assert find(model) is None
    write(model.directory.parent.parent / "backends" / "identity", "backend")
    assert where(model) == "backend"
    write(model.directory, "model")
    assert where(model) == "model"
    write(model.version_directory, "version")
    assert where(model) == "version"
    write(model.directory, "named", "own.py")
    name(model, "own.py")
    assert where(model) == "named"
    name(model, str(model.directory / "own.py"))
    assert where(model) == "named"


@pytest.mark.parametrize("path", ["../../outside.py", "/etc/passwd"])
def test_outside_the_repository(model: Model, path: str) -> None:
    write(model.directory.parent.parent, "outside", "outside.py")
    name(model, path)
    with pytest.raises(InferError, match="is outside the model repository") as caught:
        find(model)
    assert caught.value.code is ErrorCode.INVALID_ARG


def test_a_link_may_lead_out_of_the_repository(model: Model) -> None:
    write(model.directory.parent.parent, "outside", "outside.py")
    (model.directory / "link.py").symlink_to(model.directory.parent.parent / "outside.py")
    name(model, "link.py")
    assert where(model) == "outside"


def test_named_file_that_is_not_there(model: Model) -> None:
    name(model, "nonesuch.py")
    with pytest.raises(InferError, match=r"Batching library path not found: nonesuch\.py") as caught:
        find(model)
    assert caught.value.code is ErrorCode.NOT_FOUND


@pytest.mark.parametrize(
    ("source", "text"), [("x = 1", "defines no class TritonBatchStrategy"), ("1/0", "division by zero")]
)
def test_file_that_defines_none(model: Model, source: str, text: str) -> None:
    (model.directory / "batchstrategy.py").write_text(source)
    with pytest.raises(InferError, match=text) as caught:
        find(model)
    assert caught.value.code is ErrorCode.INTERNAL
