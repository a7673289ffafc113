"""EfficientNet-Lite0 of the example repository, converted by OpenVINO to its own format."""

from pathlib import Path

import numpy as np
import onnxruntime as ort
import openvino as ov
import pytest

from backends.openvino.backend import OpenVinoBackend
from tests.unit.backend_harness import Served, infer
from tests.unit.backends.openvino.networks import model

ONNX = Path(__file__).parents[4] / "model_repository" / "efficientnet_lite0_onnx" / "1" / "model.onnx"


def test_answers_are_those_of_onnxruntime(tmp_path: Path) -> None:
    if not ONNX.exists():
        pytest.skip("`make models` was not run")
    (tmp_path / "1").mkdir()
    ov.save_model(ov.Core().read_model(ONNX), tmp_path / "1" / "model.xml", compress_to_fp16=False)
    completed = model(tmp_path, "max_batch_size: 8")
    completed.config.CopyFrom(OpenVinoBackend.auto_complete(completed))
    completed.config.input[0].dims[:] = [3, 224, 224]
    served = Served(OpenVinoBackend, completed)
    pictures = np.random.default_rng(0).normal(size=(3, 3, 224, 224)).astype(np.float32)
    expected = ort.InferenceSession(str(ONNX)).run(None, {"input": pictures})[0]
    calls = served(infer({"input": pictures[:1]}), infer({"input": pictures[1:]}))
    found = np.concatenate([call.arrays["probabilities"] for call in calls])
    assert np.abs(found - expected).max() < 1e-4
    assert found.argmax(axis=1).tolist() == expected.argmax(axis=1).tolist()
