"""Models in processes of other Pythons: those on the PATH, of pyenv and of TEST_PYTHONS that have numpy."""

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from backends.base import Model
from backends.python.backend import PythonBackend
from backends.registry.loading import hosted_backend
from tests.unit.backend_harness import Served, config, infer
from tests.unit.backends.onnxruntime.test_backend import identity
from tests.unit.python_models import HEAD, text, write

VERSIONS = ("3.10", "3.12", "3.13", "3.14")
ABOUT = (
    HEAD
    + """
import sys
from dataclasses import dataclass

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(64)
        return config

    def execute(self, requests):
        about = np.array([[json.dumps([sys.version_info[:2], np.__version__])]], dtype=object)
        inputs = [pb_utils.get_input_tensor_by_name(request, "I").as_numpy() for request in requests]
        if (inputs[0] < 0).any():
            raise ValueError("below zero")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("O", about)]) for _ in inputs]
"""
)


@cache
def interpreter(version: str, *modules: str) -> Path:
    """Return an interpreter of a version that has modules; skip the test where there is none."""
    named = [Path(each) for each in os.environ.get("TEST_PYTHONS", "").split(os.pathsep) if each]
    found = shutil.which(f"python{version}")
    pyenv = (Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python")
    check = f"import sys, {', '.join(modules)}; assert sys.version_info[:2] == ({version.replace('.', ', ')})"
    candidates: list[Path] = [*named, *pyenv, *([Path(found)] if found else [])]
    for python in candidates:
        if not subprocess.run([python, "-c", check], capture_output=True).returncode:
            return python
    pytest.skip(f"no Python {version} with {' and '.join(modules)}: name one in TEST_PYTHONS")


@pytest.mark.parametrize("version", VERSIONS)
def test_python_model_in_another_interpreter(version: str, tmp_path: Path) -> None:
    python = interpreter(version, "numpy")
    model = Model(config(text()), 1, write(tmp_path, ABOUT))
    model.interpreter = python
    assert PythonBackend.auto_complete(model).max_batch_size == 64
    served = Served(PythonBackend, model)
    large = np.ones((1, 100_000), np.float32)
    (call,) = served(infer({"I": large}))
    expected = subprocess.run([python, "-c", "import numpy; print(numpy.__version__)"], capture_output=True)
    told = call.arrays["O"][0, 0].decode()
    assert told == f'[[{version.replace(".", ", ")}], "{expected.stdout.decode().strip()}"]'
    assert "ValueError: below zero" in served(infer({"I": -large}))[0].error
    served.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_built_in_backend_in_another_interpreter(version: str, tmp_path: Path) -> None:
    python = interpreter(version, "numpy", "onnxruntime", "google.protobuf")
    kind = hosted_backend("onnxruntime")
    model = Model(config('name: "m" backend: "onnxruntime"'), 1, identity(tmp_path))
    model.interpreter = python
    model.config = kind.auto_complete(model)
    assert model.config.max_batch_size == 4
    served = Served(kind, model)
    rows = np.arange(32, dtype=np.float32).reshape(2, 16)
    for call in served(infer({"I": rows}), infer({"I": rows})):
        assert call.arrays["O"].tolist() == rows.tolist()
    assert served(infer({"I": rows[:, :3]}))[0].error
    served.close()
