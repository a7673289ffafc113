"""The models of the example, built once; skipped without the weights."""

import importlib.util
import shutil
from pathlib import Path

import pytest

from examples.text import build
from model_repository.build import build_all


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec(build.PACKAGE) is None:
        pytest.skip("the weights are not installed: make text-models")
    folder = tmp_path_factory.mktemp("text") / "models"
    shutil.copytree(build.MODELS, folder, ignore=shutil.ignore_patterns("*.onnx", "tokenizer.json"))
    build_all(folder, build.RECIPES, [])
    return folder
