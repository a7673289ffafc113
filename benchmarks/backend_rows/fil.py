"""Rows of the backend fil: 100 trees of LightGBM, beside treelite, ONNX Runtime and LightGBM."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.backends import Call, Row, served

_CONFIG = """
    name: "m" backend: "fil" max_batch_size: 512
    input { name: "input__0" data_type: TYPE_FP32 dims: 30 }
    output { name: "%s" data_type: TYPE_FP32 dims: %d }
    parameters { key: "predict_proba" value { string_value: "true" } }
    parameters { key: "cpu_nthread" value { string_value: "1" } }
"""


def rows() -> Iterator[Row]:
    for count in (1, 64, 512):
        yield Row(f"fil, {count} rows, beside treelite", partial(_beside_treelite, count))
        yield Row(f"fil, {count} rows, beside ONNX Runtime", partial(_beside_onnx, count))
        yield Row(f"fil, {count} rows, Shapley values, beside LightGBM", partial(_beside_lightgbm, count))


def _trained(folder: Path, count: int) -> tuple[Any, Any]:
    """Train, and write the model's file; return the booster and rows to ask for."""
    import lightgbm
    from sklearn.datasets import load_breast_cancer

    features, target = load_breast_cancer(return_X_y=True)
    options = {"objective": "binary", "num_leaves": 31, "verbose": -1, "num_threads": 2}
    booster = lightgbm.train(options, lightgbm.Dataset(features, target), 100)
    (folder / "1").mkdir()
    booster.save_model(folder / "1/model.txt")
    return booster, np.ascontiguousarray(features[:count], np.float32)


def _treelite(folder: Path) -> Any:
    from treelite import frontend

    return frontend.load_lightgbm_model(folder / "1/model.txt")


def _beside_treelite(count: int, folder: Path) -> tuple[Call, Call]:
    import treelite.gtil

    _, asked = _trained(folder, count)
    model = _treelite(folder)
    ours = served(_CONFIG % ("output__0", 1), folder, {"input__0": asked})
    return ours, lambda: treelite.gtil.predict(model, asked, nthread=1)


def _beside_onnx(count: int, folder: Path) -> tuple[Call, Call]:
    from backends.fil.forest import read_forest
    from backends.fil.onnx_trees import open_session

    _, asked = _trained(folder, count)
    ours = served(_CONFIG % ("output__0", 1), folder, {"input__0": asked})
    session = open_session(read_forest(_treelite(folder)))
    return ours, lambda: session.run(None, {"input__0": asked})


def _beside_lightgbm(count: int, folder: Path) -> tuple[Call, Call]:
    booster, asked = _trained(folder, count)
    ours = served(_CONFIG % ("treeshap_output", 31), folder, {"input__0": asked})
    return ours, lambda: booster.predict(asked, pred_contrib=True, num_threads=1)
