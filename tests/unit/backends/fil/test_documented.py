"""What Triton's fil_backend documents of parameters and answers, beyond the trainers' own."""

import logging
from pathlib import Path

import lightgbm
import numpy as np
import pytest
import treelite.sklearn
from sklearn import datasets, ensemble

from app.core.errors import ErrorCode, InferError
from backends.base import Model
from backends.fil.backend import FilBackend, best_class
from backends.fil.settings import read_settings, warn_of_parameters
from tests.unit.backend_harness import Served, config, infer
from tests.unit.backends.fil.test_backend import text

REMOVED = "has been removed in 25.09 release."
FOR_GPUS = "is for GPUs; trees run on the CPU here"


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("algo", "ALGO_AUTO", f"The `algo` parameter {REMOVED} Use `layout` instead."),
        ("threads_per_tree", "2", f"The `threads_per_tree` parameter {REMOVED} Use `chunk_size` instead."),
        ("storage_type", "DENSE", f"The `storage_type` parameter {REMOVED}"),
        ("blocks_per_sm", "1", f"The `blocks_per_sm` parameter {REMOVED}"),
        ("layout", "layered", FOR_GPUS),
        ("chunk_size", "4", FOR_GPUS),
        ("transfer_threshold", "9", FOR_GPUS),
    ],
)
def test_parameters_without_effect_are_told(
    key: str, value: str, told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Model(config(text(**{key: value})), 1, tmp_path)
    with caplog.at_level(logging.WARNING):
        warn_of_parameters(model)
    (record,) = caplog.records
    assert told in record.getMessage() and key in record.getMessage()


def test_nothing_is_required(tmp_path: Path) -> None:
    settings = read_settings(Model(config(text()), 1, tmp_path))
    assert (settings.is_classifier, settings.predict_proba, settings.threshold) == (None, False, 0.5)
    assert not settings.allow_unknown_field


def test_class_is_the_first_of_the_largest_or_0() -> None:
    answers = np.array([[0.1, 0.4, 0.4], [0, 0, 0], [-2, -1, -3], [0, 0.1, 0]], np.float32)
    assert best_class(answers).tolist() == [[1], [0], [0], [1]]


def test_several_targets_are_refused(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((50, 3)).astype(np.float32)
    forest = ensemble.RandomForestRegressor(2, max_depth=2, random_state=0, n_jobs=1).fit(rows, rows[:, :2])
    (tmp_path / "1").mkdir()
    treelite.sklearn.import_model(forest).serialize(str(tmp_path / "1/checkpoint.tl"))
    with pytest.raises(InferError) as caught:
        FilBackend.auto_complete(Model(config(text()), 1, tmp_path))
    assert caught.value.code is ErrorCode.UNSUPPORTED
    assert caught.value.message == "Multi-target model not supported"


def test_probabilities_of_several_classes_are_a_softmax(tmp_path: Path) -> None:
    """Also where the trainer's are not, as those of one class against all."""
    features, target = datasets.load_wine(return_X_y=True)
    options = {"objective": "multiclassova", "num_class": 3, "verbose": -1, "num_threads": 1}
    booster = lightgbm.train(options, lightgbm.Dataset(features, target), 5)
    (tmp_path / "1").mkdir()
    booster.save_model(tmp_path / "1/model.txt")
    model = Model(config(text(predict_proba="true")), 1, tmp_path)
    model.config = FilBackend.auto_complete(model)
    rows = features[::20].astype(np.float32)
    (call,) = Served(FilBackend, model)(infer({"input__0": rows}))
    powers = np.exp(booster.predict(rows, raw_score=True))
    expected = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(call.arrays["output__0"], expected, rtol=1e-5)
