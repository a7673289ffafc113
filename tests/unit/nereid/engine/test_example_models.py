"""The example repository in one process: what README says of the picture, without a cluster."""

from pathlib import Path

import numpy as np
import pytest

from nereid.engine.engine import Engine

ROOT = Path(__file__).parents[4]
LABELS = ROOT / "model_repository" / "efficientnet_lite0_onnx" / "labels.txt"


@pytest.mark.slow
def test_the_example_models_answer_in_one_process() -> None:
    flags = {"model_control_mode": "explicit"}
    with Engine.open(model_repository=[str(ROOT / "model_repository")], **flags) as engine:
        for name in ("efficientnet_ensemble", "ocr_ensemble", "faces", "simple", "simple_sequence"):
            engine.load(name)  # ensembles bring what they call
        served = [name for name, _, _, _ in engine.index(ready=True)]
        assert len(set(served)) >= 11 and "rapidocr_rec" in served
        coffee = np.array([[(ROOT / "tests" / "data" / "coffee.jpg").read_bytes()]], object)
        found = engine.infer("efficientnet_ensemble", {"image": coffee})["probabilities"][0]
        assert int(found.argmax()) == 967 and abs(float(found.max()) - 0.953979) < 1e-4  # espresso
        face = np.array([(ROOT / "tests" / "data" / "astronaut.jpg").read_bytes()], object)
        engine.load("centerface")
        boxes = engine.infer("faces", {"image": face})["boxes"]
        assert boxes.round().tolist() == [[180.0, 58.0, 271.0, 176.0]]
