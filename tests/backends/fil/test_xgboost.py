"""Models of XGBoost, in JSON and UBJSON, each against XGBoost's own answers and contributions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.base import Model
from backends.fil.backend import FilBackend
from backends.fil.predictors import Gtil
from tests.unit.backend_harness import Served, config, infer

xgboost = pytest.importorskip("xgboost")
datasets = pytest.importorskip("sklearn.datasets")

FILES = ("xgboost.json", "xgboost.ubj")
OBJECTIVES: dict[str, tuple[str, dict[str, Any]]] = {
    "binary": ("breast_cancer", {"objective": "binary:logistic"}),
    "missing": ("breast_cancer", {"objective": "binary:logistic"}),
    "multiclass": ("digits", {"objective": "multi:softprob", "num_class": 10}),
    "regression": ("diabetes", {"objective": "reg:squarederror"}),
    "counts": ("diabetes", {"objective": "count:poisson"}),
    "dart": ("breast_cancer", {"objective": "binary:logistic", "booster": "dart", "rate_drop": 0.3}),
    "forests": ("breast_cancer", {"objective": "binary:logistic", "num_parallel_tree": 3, "subsample": 0.7}),
    "categories": ("", {"objective": "reg:squarederror", "max_cat_to_onehot": 1}),
}


def trained(name: str) -> tuple[Any, Any]:
    source, options = OBJECTIVES[name]
    random = np.random.default_rng(0)
    types = None
    if source:
        rows, target = getattr(datasets, f"load_{source}")(return_X_y=True)
    else:
        rows = random.integers(0, 30, (500, 4))
        target = np.isin(rows[:, 0], (1, 5, 7, 20)) * 2.0 + rows[:, 1] / 20
        types = ["c", "float", "c", "float"]
    rows = rows.astype(np.float32)
    if name in ("missing", "categories"):
        rows[random.random(rows.shape) < 0.2] = np.nan
    matrix = xgboost.DMatrix(rows, target, feature_types=types, enable_categorical=bool(types))
    booster = xgboost.train({**options, "nthread": 1, "max_depth": 4, "seed": 0}, matrix, 20)
    return booster, (rows, matrix)


def serve(folder: Path, booster: Any, file: str, classes: int, features: int) -> Served:
    (folder / "1").mkdir()
    booster.save_model(folder / "1" / file)
    shape = f"[{classes}, {features + 1}]" if classes > 1 else str(features + 1)
    model = Model(
        config(
            f"""
            name: "m" backend: "fil" max_batch_size: 2048
            input {{ name: "input__0" data_type: TYPE_FP32 dims: {features} }}
            output {{ name: "output__0" data_type: TYPE_FP32 dims: {classes} }}
            output {{ name: "treeshap_output" data_type: TYPE_FP32 dims: {shape} }}
            parameters {{ key: "predict_proba" value {{ string_value: "true" }} }}
            """
        ),
        1,
        folder,
    )
    model.config = FilBackend.auto_complete(model)
    return Served(FilBackend, model)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_answers_and_contributions_are_xgboosts(tmp_path: Path, name: str, file: str) -> None:
    booster, (rows, matrix) = trained(name)
    classes = 10 if name == "multiclass" else 1
    served = serve(tmp_path, booster, file, classes, rows.shape[1])
    (call,) = served(infer({"input__0": rows[:100]}))
    expected = booster.predict(matrix)[:100].reshape(-1, classes)
    np.testing.assert_allclose(call.arrays["output__0"], expected, rtol=3e-6, atol=1e-6)
    found = call.arrays["treeshap_output"]
    contributions = booster.predict(matrix, pred_contribs=True)[:100].reshape(found.shape)
    largest = np.abs(contributions).max()
    np.testing.assert_allclose(found, contributions, rtol=1e-4, atol=1e-5 * largest)
    predictor = served.instance.state.predict
    assert isinstance(getattr(predictor, "predictor", predictor), Gtil) == (name == "categories")


@pytest.mark.parametrize("objective", ["multi:softprob", "multi:softmax"])
def test_trees_of_several_outputs_answer_probabilities(tmp_path: Path, objective: str) -> None:
    rows, target = datasets.load_digits(return_X_y=True)
    options = {"objective": objective, "num_class": 10, "multi_strategy": "multi_output_tree", "nthread": 1}
    booster = xgboost.train({**options, "max_depth": 4, "seed": 0}, xgboost.DMatrix(rows, target), 5)
    (tmp_path / "1").mkdir()
    booster.save_model(tmp_path / "1/xgboost.json")
    proba = 'parameters { key: "predict_proba" value { string_value: "true" } }'
    for parameters in (proba, ""):
        model = Model(config(f'name: "m" backend: "fil" {parameters}'), 1, tmp_path)
        model.config = FilBackend.auto_complete(model)
        (call,) = Served(FilBackend, model)(infer({"input__0": rows[:100].astype(np.float32)}))
        margins = booster.predict(xgboost.DMatrix(rows[:100]), output_margin=True)
        found = call.arrays["output__0"]
        if parameters:
            powers = np.exp(margins - margins.max(axis=1, keepdims=True))
            expected = powers / powers.sum(axis=1, keepdims=True)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        else:
            assert found[:, 0].tolist() == margins.argmax(axis=1).tolist()


def test_unknown_field_is_refused_unless_allowed(tmp_path: Path) -> None:
    booster, (rows, _) = trained("binary")
    (tmp_path / "1").mkdir()
    raw = booster.save_raw("json").decode()
    (tmp_path / "1/xgboost.json").write_text(raw[:-1] + ',"mine":1}')
    text = 'name: "m" backend: "fil"'
    with pytest.raises(Exception, match="could not be parsed as XGBoost model"):
        FilBackend.auto_complete(Model(config(text), 1, tmp_path))
    allow = 'parameters { key: "xgboost_allow_unknown_field" value { string_value: "true" } }'
    model = Model(config(text + allow), 1, tmp_path)
    model.config = FilBackend.auto_complete(model)
    (call,) = Served(FilBackend, model)(infer({"input__0": rows}))
    assert set(np.unique(call.arrays["output__0"])) == {0, 1}
