"""What `nereid check` reads of a SavedModel, which it does not load."""

from pathlib import Path

import pytest
import tensorflow as tf

from app.core.errors import InferError
from backends.base import Model
from backends.tensorflow.backend import TensorFlowBackend
from tests.backends.tensorflow import models
from tests.unit.backend_harness import config

OTHER_TYPE = 'input { name: "image" data_type: TYPE_INT32 dims: 64 }'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    models.write_digits(folder / "1" / "model.savedmodel")
    return folder


def inspected(folder: Path, text: str = "") -> bool:
    described = config(f'name: "digits" backend: "tensorflow" platform: "tensorflow_savedmodel" {text}')
    return TensorFlowBackend.inspect(Model(described, 1, folder))


@pytest.fixture(autouse=True)
def nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf.compat.v1.saved_model, "load", None)


def test_fitting_model_passes(folder: Path) -> None:
    assert inspected(folder) is False


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (OTHER_TYPE, "configuration expects datatype TYPE_INT32 for input 'image', model provides TYPE_FP32"),
        ('default_model_filename: "no"', "unable to find"),
    ],
)
def test_what_a_load_refuses_fails(folder: Path, text: str, message: str) -> None:
    with pytest.raises(InferError) as caught:
        inspected(folder, text)
    assert message in caught.value.message


def test_truncated_graph_fails(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "1" / "model.savedmodel").mkdir(parents=True)
    content = (folder / "1" / "model.savedmodel" / "saved_model.pb").read_bytes()
    (tmp_path / "1" / "model.savedmodel" / "saved_model.pb").write_bytes(content[:200])
    with pytest.raises(InferError, match="unable to parse"):
        inspected(tmp_path)
