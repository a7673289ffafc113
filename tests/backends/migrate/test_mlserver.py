"""Models of XGBoost that `nereid migrate mlserver` has made answer as MLServer's runtime does.

That reads a file by XGBoost's own estimators: a classifier's answers are classes, a booster's are numbers.
The answers were compared with those of MLServer 1.7.1 itself.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nereid.engine.engine import Engine
from nereid.migrate import mlserver
from nereid.migrate.writing import write
from tests.unit.nereid.migrate.sources import migrated

xgboost = pytest.importorskip("xgboost")

ROWS = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
CLASSES = (ROWS[:, 0] + ROWS[:, 1] > 0).astype(int)


def booster() -> Any:
    return xgboost.train({"objective": "binary:logistic"}, xgboost.DMatrix(ROWS, CLASSES), 5)


@pytest.mark.parametrize("file", ["model.json", "model.ubj"])
@pytest.mark.parametrize(
    ("made", "datatype"),
    [
        (lambda: xgboost.XGBClassifier(n_estimators=5).fit(ROWS, CLASSES), np.int64),
        (lambda: xgboost.XGBRegressor(n_estimators=5).fit(ROWS, ROWS[:, 2]), np.float32),
        (booster, np.float32),
    ],
    ids=["classifier", "regressor", "booster"],
)
def test_a_model_of_xgboost_predicts(tmp_path: Path, made: Any, datatype: Any, file: str) -> None:
    source = tmp_path / "source"
    source.mkdir()
    model = made()
    model.save_model(source / file)
    settings = {"name": "trees", "implementation": "mlserver_xgboost.XGBoostModel"}
    (source / "model-settings.json").write_text(json.dumps(settings))
    for found in migrated(mlserver.models(source)):
        write(found, tmp_path / "models")
    with Engine.open(model_repository=[str(tmp_path / "models")]) as engine:
        answer = engine.infer("trees", {"predict": ROWS[:5]})["predict"]
    given = xgboost.DMatrix(ROWS[:5]) if isinstance(model, xgboost.Booster) else ROWS[:5]
    assert answer.dtype == datatype and answer.shape == (5, 1)
    np.testing.assert_allclose(answer[:, 0], model.predict(given), rtol=1e-6)
