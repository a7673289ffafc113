"""A small model of convolutions, and a tape of its requests."""

from pathlib import Path

import numpy as np
import pytest

from nereid.engine.engine import Engine
from tests.unit.nereid.optimise.networks import classifier

ROWS = 240


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a repository `models`, which has the model `small`, and its tape."""
    directory = tmp_path_factory.mktemp("optimise")
    model = directory / "models" / "small"
    (model / "1").mkdir(parents=True)
    classifier(model / "1" / "model.onnx")
    (model / "config.pbtxt").write_text('name: "small"\nbackend: "onnxruntime"\nmax_batch_size: 8\n')
    (model / "tape.yaml").write_text("rate: 1\n")
    rng = np.random.default_rng(0)
    flags = {"model_repository": [str(directory / "models")], "model_control_mode": "explicit"}
    with Engine.open(
        **flags, load_model=["small"], tape=str(directory / "tape"), tape_rate_limit="0"
    ) as engine:
        for _ in range(ROWS):
            inputs = {"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)}
            engine.infer("small", inputs)
        engine.infer("small", inputs)  # once more the same
    return directory
