"""The example repository and what runs its models without a server."""

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest

from tests.unit.model_repository import fake_pb_utils

ROOT = Path(__file__).parents[3]
REPOSITORY = ROOT / "model_repository"
DATA = ROOT / "tests" / "data"
Run = Callable[..., list[npt.NDArray[Any]]]
Load = Callable[..., Any]


@pytest.fixture(scope="session")
def run_onnx() -> Run:
    """Run `<model>/<version>` of the example repository; inputs by name, outputs in the model's order."""
    sessions: dict[str, onnxruntime.InferenceSession] = {}

    def run(model: str, **inputs: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        if model not in sessions:
            file = REPOSITORY / model / "model.onnx"
            sessions[model] = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        outputs: list[npt.NDArray[Any]] = sessions[model].run(None, inputs)
        return outputs

    return run


@pytest.fixture
def load_python(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Load a model's model.py and initialize its TritonPythonModel with the given parameters."""

    def load(model: str, **parameters: object) -> Any:
        monkeypatch.setitem(sys.modules, "triton_python_backend_utils", fake_pb_utils)
        spec = importlib.util.spec_from_file_location(
            f"example_{model}", REPOSITORY / model / "1" / "model.py"
        )
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        instance = module.TritonPythonModel()
        if hasattr(instance, "initialize"):
            config = {"parameters": {key: {"string_value": str(value)} for key, value in parameters.items()}}
            instance.initialize({"model_config": json.dumps(config)})
        return instance

    return load


@pytest.fixture
def pixels(load_python: Load) -> Callable[[str], npt.NDArray[np.float32]]:
    """A picture of tests/data by name, as image_preprocess gives it: FP32 [1, 3, 224, 224]."""
    model = load_python("image_preprocess", max_bytes=1 << 24, max_pixels=50_000_000)

    def preprocess(name: str) -> npt.NDArray[np.float32]:
        image = np.array([[(DATA / name).read_bytes()]], dtype=object)
        (response,) = model.execute([fake_pb_utils.Request(image=image)])
        result: npt.NDArray[np.float32] = response.outputs["pixels"]
        return result

    return preprocess


def labels(model: str) -> list[str]:
    return (REPOSITORY / model / "labels.txt").read_text(encoding="utf-8").splitlines()
