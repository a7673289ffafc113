"""Models in directories outside the repositories."""

from pathlib import Path

import pytest

from app.core.errors import ErrorCode, InferError
from deployments.model_store.registered import RegisteredModels


def model(directory: Path, config: str = 'backend: "identity"') -> Path:
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(config)
    return directory


def test_a_model_is_found_by_its_registered_name(tmp_path: Path) -> None:
    registered = RegisteredModels()
    registered.add("hash", str(model(tmp_path / "hash" / "model")))
    repository = tmp_path / "hash"
    assert registered.repositories == [repository]
    (entry,) = registered.find("hash", {repository: "space"})
    assert (entry.name, entry.directory.name, entry.versions) == ("hash", "model", (1,))
    assert entry.identifier == "space::hash"
    assert registered.find("model", {repository: ""}) == [] and registered.find("hash", {}) == []
    registered.discard("hash")
    assert registered.repositories == []


def test_a_directory_of_models_stands_for_its_ensemble(tmp_path: Path) -> None:
    registered, place = RegisteredModels(), tmp_path / "hash" / "model"
    model(place / "step")
    model(place / "pipeline", 'platform: "ensemble" ensemble_scheduling { }')
    registered.add("hash", str(place))
    (entry,) = registered.find("hash", {place: ""})
    assert (entry.name, entry.directory) == ("hash", place / "pipeline")


def test_a_directory_of_one_model_stands_for_it(tmp_path: Path) -> None:
    registered = RegisteredModels()
    model(tmp_path / "only")
    registered.add("hash", str(tmp_path))
    assert registered.find("hash", {tmp_path: ""})[0].directory == tmp_path / "only"


@pytest.mark.parametrize(("name", "place"), [("a", "other"), ("b", "a")])
def test_name_and_directory_are_registered_once(tmp_path: Path, name: str, place: str) -> None:
    registered = RegisteredModels()
    registered.add("a", str(model(tmp_path / "a" / "model")))
    directory = tmp_path / place / "model"
    if not directory.exists():
        model(directory)
    with pytest.raises(InferError, match="has already been registered") as refused:
        registered.add(name, str(directory))
    assert refused.value.code is ErrorCode.ALREADY_EXISTS


@pytest.mark.parametrize("models", [(), ("a", "b")])
def test_a_directory_without_one_model_is_refused(tmp_path: Path, models: tuple[str, ...]) -> None:
    for name in models:
        model(tmp_path / "x" / name)
    (tmp_path / "x").mkdir(exist_ok=True)
    with pytest.raises(InferError, match="expected a model, or an ensemble with its models"):
        RegisteredModels().add("hash", str(tmp_path / "x"))
    with pytest.raises(InferError, match="No such file or directory"):
        RegisteredModels().add("hash", str(tmp_path / "none"))
