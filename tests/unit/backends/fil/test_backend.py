"""The backend fil: models of LightGBM and scikit-learn, each against its trainer's own answers."""

import functools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import lightgbm
import numpy as np
import pytest
import treelite
import treelite.sklearn
from sklearn import datasets, ensemble
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import ErrorCode, InferError
from backends.base import Model
from backends.fil import backend
from backends.fil.backend import FilBackend
from backends.fil.predictors import Gtil
from backends.fil.reading import read_model
from tests.unit.backend_harness import Served, config, infer

Array = Any


class Trained(NamedTuple):
    """A model file with its folder, rows to ask for, and what its trainer answers."""

    folder: Path
    rows: Array
    answers: Array
    contributions: Array


def data(name: str, missing: bool = False) -> tuple[Array, Array]:
    rows, target = getattr(datasets, f"load_{name}")(return_X_y=True)
    rows = rows.astype(np.float32)
    if missing:
        rows[np.random.default_rng(1).random(rows.shape) < 0.2] = np.nan
    return rows, target


def boosted(folder: Path, rows: Array, target: Array, categorical: Any = "auto", **options: Any) -> Trained:
    options |= {"verbose": -1, "num_threads": 1, "num_leaves": 15, "min_data_per_group": 5}
    train = lightgbm.Dataset(rows, target, categorical_feature=categorical)
    booster = lightgbm.train(options, train, 30)
    booster.save_model(folder / "1/model.txt")
    answers = booster.predict(rows)
    return Trained(folder, rows, answers, booster.predict(rows, pred_contrib=True))


def forest(folder: Path, rows: Array, target: Array, estimator: Any) -> Trained:
    estimator.fit(rows, target)
    treelite.sklearn.import_model(estimator).serialize(str(folder / "1/checkpoint.tl"))
    if isinstance(estimator, ensemble.IsolationForest):
        return Trained(folder, rows, -estimator.score_samples(rows), None)
    has_classes = hasattr(estimator, "predict_proba")
    answers = estimator.predict_proba(rows) if has_classes else estimator.predict(rows)
    return Trained(folder, rows, answers, None)


def with_categories(folder: Path) -> Trained:
    random = np.random.default_rng(0)
    rows = random.integers(0, 40, (600, 4)).astype(np.float32)
    rows[random.random(rows.shape) < 0.1] = np.nan
    target = np.isin(rows[:, 0], (1, 5, 7, 30)) * 2.0 + np.nan_to_num(rows[:, 1]) / 20
    return boosted(folder, rows, target, categorical=[0, 2], objective="regression")


def with_zeros(folder: Path, categorical: Any = "auto") -> Trained:
    """Zeros are missing values, but in the last feature, if it has categories; one feature has none yet."""
    random = np.random.default_rng(0)
    rows = random.standard_normal((800, 5)).astype(np.float32)
    rows[:, 4] = random.integers(0, 6, 800)
    rows[:, :3][random.random((800, 3)) < 0.3] = 0
    rows[:, 1][random.random(800) < 0.1] = np.nan
    target = (rows[:, 0] == 0) * 2.0 + np.nan_to_num(rows[:, 1]) + rows[:, 3] + (rows[:, 4] == 0)
    boosted(folder, rows, target, categorical=categorical, objective="regression", zero_as_missing=True)
    rows[::3, 3] = 0
    rows[1] = 1e-36, -1e-36, 1e-34, -1e-34, 0
    booster = lightgbm.Booster(model_file=folder / "1/model.txt")
    return Trained(folder, rows, booster.predict(rows), booster.predict(rows, pred_contrib=True))


def digits_forest(folder: Path) -> Trained:
    return forest(folder, *data("digits"), ensemble.RandomForestClassifier(20, n_jobs=1, random_state=0))


MODELS: dict[str, Callable[[Path], Trained]] = {
    "binary": lambda p: boosted(p, *data("breast_cancer"), objective="binary"),
    "missing": lambda p: boosted(p, *data("breast_cancer", missing=True), objective="binary"),
    "multiclass": lambda p: boosted(p, *data("wine"), objective="multiclass", num_class=3),
    "regression": lambda p: boosted(p, *data("diabetes"), objective="regression"),
    "poisson": lambda p: boosted(p, *data("diabetes"), objective="poisson"),
    "categories": with_categories,
    "zeros": with_zeros,
    "zeros_and_categories": lambda p: with_zeros(p, categorical=[4]),
    "rf_digits": digits_forest,
    "rf_binary": lambda p: forest(
        p, *data("breast_cancer"), ensemble.RandomForestClassifier(10, random_state=0)
    ),
    "rf_regression": lambda p: forest(
        p, *data("diabetes"), ensemble.RandomForestRegressor(10, random_state=0)
    ),
    "gb_multiclass": lambda p: forest(p, *data("wine"), ensemble.GradientBoostingClassifier(n_estimators=10)),
    "hist_binary": lambda p: forest(
        p, *data("breast_cancer"), ensemble.HistGradientBoostingClassifier(max_iter=10)
    ),
    "extra_multiclass": lambda p: forest(p, *data("wine"), ensemble.ExtraTreesClassifier(10, random_state=0)),
    "isolation": lambda p: forest(
        p, *data("wine"), ensemble.IsolationForest(n_estimators=10, random_state=0)
    ),
}
TREELITE_ANSWERS = ("categories", "zeros_and_categories", "isolation")
BOOSTED_CLASSES = ("binary", "missing", "multiclass", "gb_multiclass", "hist_binary")
HAS_CLASSES = (*BOOSTED_CLASSES, "rf_digits", "rf_binary", "extra_multiclass")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    """Train a model at its first use."""
    made: dict[str, Trained] = {}

    def get(name: str) -> Trained:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            (folder / "1").mkdir()
            made[name] = MODELS[name](folder)
        return made[name]

    return get


@pytest.fixture(autouse=True, scope="module")
def each_file_is_read_once() -> Iterator[None]:
    """A file is read by a process of its own, which takes a third of a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "read_model", functools.cache(read_model))
        yield


@pytest.fixture(params=MODELS)
def each(request: pytest.FixtureRequest, trained: Callable[[str], Trained]) -> Iterator[tuple[str, Trained]]:
    yield request.param, trained(request.param)


def text(**parameters: str) -> str:
    pairs = (f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}' for k, v in parameters.items())
    return 'name: "m" backend: "fil" ' + " ".join(pairs)


def completed(model: Trained, configuration: str) -> Model:
    described = Model(config(configuration), 1, model.folder)
    described.config = FilBackend.auto_complete(described)
    return described


def serve(model: Trained, configuration: str) -> Served:
    return Served(FilBackend, completed(model, configuration))


def refusal(model: Trained, configuration: str) -> InferError:
    with pytest.raises(InferError) as caught:
        serve(model, configuration)
    return caught.value


def test_probabilities_and_values_are_the_trainers(each: tuple[str, Trained]) -> None:
    name, model = each
    served = serve(model, text(predict_proba="true"))
    (call,) = served(infer({"input__0": model.rows}))
    expected = model.answers
    if name in HAS_CLASSES and expected.ndim == 1:
        expected = np.stack([1 - expected, expected], axis=1)
    rtol = 1e-5 if name == "poisson" else 2e-6  # an exponential of sums of float32
    np.testing.assert_allclose(
        call.arrays["output__0"].reshape(expected.shape), expected, rtol=rtol, atol=3e-7
    )
    predictor = served.instance.state.predict
    assert isinstance(getattr(predictor, "predictor", predictor), Gtil) == (name in TREELITE_ANSWERS)
    served.close()


def test_as_many_rows_as_before_are_answered_without_arrays(trained: Callable[[str], Trained]) -> None:
    model = trained("regression")
    served = serve(model, text())
    first, second = (infer({"input__0": model.rows[start : start + 2]}) for start in (0, 2))
    answer = served.instance.answer
    assert answer is not None and answer(first.inputs) is None
    served(first)
    for request, expected in ((second, model.answers[2:4]), (first, model.answers[:2])):
        (output,) = answer(request.inputs) or ()
        assert (output.name, output.shape) == ("output__0", (2, 1))
        np.testing.assert_allclose(output.array()[:, 0], expected, rtol=2e-6)


def test_answers_that_need_a_form_are_not_bound(trained: Callable[[str], Trained]) -> None:
    assert serve(trained("binary"), text()).instance.answer is None  # a class, not its probability
    assert serve(trained("regression"), with_shap(trained("regression"), "11")).instance.answer is None


def test_classes_are_the_likeliest(each: tuple[str, Trained]) -> None:
    name, model = each
    if name not in HAS_CLASSES:
        return
    served = serve(model, text())
    (call,) = served(infer({"input__0": model.rows}))
    expected = model.answers > 0.5 if model.answers.ndim == 1 else model.answers.argmax(axis=1)
    assert call.arrays["output__0"].shape == (len(model.rows), 1)
    assert np.array_equal(call.arrays["output__0"][:, 0], expected)


def test_shapley_values_are_the_trainers(each: tuple[str, Trained]) -> None:
    name, model = each
    if model.contributions is None:
        return
    features, classes = model.rows.shape[1], 3 if name == "multiclass" else 1
    dims = f"[{classes}, {features + 1}]" if classes > 1 else f"{features + 1}"
    served = serve(model, with_shap(model, dims))
    rows = model.rows[:40]
    (call,) = served(infer({"input__0": rows}))
    found = call.arrays["treeshap_output"]
    assert found.shape == (len(rows), classes, features + 1)[:: 2 if classes == 1 else 1]
    expected = model.contributions[:40].reshape(found.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def with_shap(model: Trained, dims: str) -> str:
    width = model.rows.shape[1]
    return (
        text(is_classifier="false")
        + f' max_batch_size: 64 input {{ name: "input__0" data_type: TYPE_FP32 dims: {width} }}'
        f' output {{ name: "output__0" data_type: TYPE_FP32 dims: -1 }}'
        f' output {{ name: "treeshap_output" data_type: TYPE_FP32 dims: {dims} }}'
    )


def test_shapley_values_of_a_forest_add_up(trained: Callable[[str], Trained]) -> None:
    model = trained("rf_digits")
    served = serve(model, with_shap(model, "[10, 65]"))
    rows = model.rows[:5]
    (call,) = served(infer({"input__0": rows}))
    np.testing.assert_allclose(call.arrays["treeshap_output"].sum(axis=2), model.answers[:5], atol=1e-6)


def test_completion(trained: Callable[[str], Trained]) -> None:
    described = completed(trained("multiclass"), text(predict_proba="true")).config
    assert [tuple(tensor.dims) for tensor in (*described.input, *described.output)] == [(13,), (3,)]
    assert [tensor.name for tensor in (*described.input, *described.output)] == ["input__0", "output__0"]
    assert described.max_batch_size == 32768 and described.HasField("dynamic_batching")
    assert all(tensor.data_type == mc.TYPE_FP32 for tensor in (*described.input, *described.output))
    assert list(completed(trained("multiclass"), text()).config.output[0].dims) == [1]
    assert list(completed(trained("binary"), text(predict_proba="true")).config.output[0].dims) == [2]
    assert list(completed(trained("regression"), text()).config.output[0].dims) == [1]


DECLARED = """max_batch_size: 8 input { name: "input__0" data_type: TYPE_FP32 dims: 30 }
    output { name: "output__0" data_type: TYPE_FP32 dims: %s }"""


def test_binary_probabilities_have_the_declared_width(trained: Callable[[str], Trained]) -> None:
    model = trained("binary")
    for width in (1, 2):
        served = serve(model, text(predict_proba="true", is_classifier="true") + DECLARED % width)
        one, other = served(infer({"input__0": model.rows[:1]}), infer({"input__0": model.rows[1:3]}))
        assert one.arrays["output__0"].shape == (1, width) and other.arrays["output__0"].shape == (2, width)
        np.testing.assert_allclose(one.arrays["output__0"][0, -1], model.answers[0], rtol=1e-5)


def test_threshold_decides_binary_classes(trained: Callable[[str], Trained]) -> None:
    model = trained("binary")
    served = serve(model, text(threshold="0.99"))
    (call,) = served(infer({"input__0": model.rows}))
    assert np.array_equal(call.arrays["output__0"][:, 0], model.answers > 0.99)
    assert (model.answers > 0.5).sum() > (model.answers > 0.99).sum()


def test_old_parameter_output_class_is_heeded(
    trained: Callable[[str], Trained], caplog: pytest.LogCaptureFixture
) -> None:
    model = trained("binary")
    with caplog.at_level(logging.WARNING):
        served = serve(model, text(output_class="false", is_classifier="true", layout="layered"))
    (call,) = served(infer({"input__0": model.rows}))
    np.testing.assert_allclose(call.arrays["output__0"][:, 0], model.answers, rtol=1e-5)
    assert (
        "The `output_class` parameter has been removed in 25.09 release. Use `is_classifier`" in caplog.text
    )
    assert "'layout' is for GPUs" in caplog.text


def test_model_without_batches(trained: Callable[[str], Trained]) -> None:
    model = trained("binary")
    served = serve(model, text(is_classifier="false") + DECLARED.replace("max_batch_size: 8", "") % 1)
    (call,) = served(infer({"input__0": model.rows[0]}))
    assert call.arrays["output__0"].shape == (1,)
    open_rows = DECLARED.replace("max_batch_size: 8", "").replace("dims: 30", "dims: [-1, 30]") % "[-1, 1]"
    served = serve(model, text(is_classifier="false") + open_rows)
    (call,) = served(infer({"input__0": model.rows[:5]}))
    np.testing.assert_allclose(call.arrays["output__0"][:, 0], model.answers[:5], rtol=1e-5)


def test_wrong_number_of_features_fails_the_request(trained: Callable[[str], Trained]) -> None:
    served = serve(trained("binary"), text() + DECLARED.replace("dims: 30", "dims: -1") % 1)
    (call,) = served(infer({"input__0": np.zeros((2, 29), np.float32)}))
    assert call.error == "input 'input__0' has shape [2, 29], but a row has 30 features"


REFUSED = [
    ({"predict_proba": "yes"}, "", "Expected 'true' or 'false' for parameter 'predict_proba', got: 'yes'"),
    ({"threshold": "half"}, "", "Bad input for parameter threshold"),
    ({"chunk_size": "x"}, "", "Bad input for parameter chunk_size"),
    ({"model_type": "pickle"}, "", "pickle not recognized as a valid serialization format."),
    (
        {},
        DECLARED.replace("30", "29") % 1,
        "model 'm', tensor 'input__0': the model expects 2 dimensions (shape [-1,30]) but the model"
        " configuration specifies 1 dimensions (shape [29])",
    ),
    ({"predict_proba": "true"}, DECLARED % 3, "the model expects 2 dimensions (shape [-1,1] or [-1,2]) but"),
    (
        {},
        DECLARED.replace("input__0", "x") % 1,
        "unexpected inference input 'x', allowed inputs are: input__0",
    ),
    (
        {},
        DECLARED.replace('output__0" data_type: TYPE_FP32', 'output__0" data_type: TYPE_FP64') % 1,
        "configuration expects datatype TYPE_FP64 for output 'output__0', model provides TYPE_FP32",
    ),
]


@pytest.mark.parametrize(("parameters", "tensors", "message"), REFUSED)
def test_refused_configurations(
    trained: Callable[[str], Trained], parameters: dict[str, str], tensors: str, message: str
) -> None:
    error = refusal(trained("binary"), text(**parameters) + tensors)
    assert message in error.message
    expected = ErrorCode.UNSUPPORTED if "model_type" in parameters else ErrorCode.INVALID_ARG
    assert error.code is expected


def test_missing_file_is_named(trained: Callable[[str], Trained]) -> None:
    model = trained("binary")
    error = refusal(model, text(model_type="xgboost_json"))
    path = model.folder / "1/xgboost.json"
    assert error.message == f"unable to find '{path}' for model instance 'm'"
    assert error.code is ErrorCode.UNAVAILABLE


@pytest.mark.parametrize("name", ["multiclass", "categories"])
def test_large_batches_are_answered_in_parts(trained: Callable[[str], Trained], name: str) -> None:
    """Whatever OpenMP allows: Ray sets OMP_NUM_THREADS to 1."""
    model = trained(name)
    served = serve(model, text(cpu_nthread="64", predict_proba="true"))
    rows = np.tile(model.rows, (30, 1))
    (call,) = served(infer({"input__0": rows}))
    expected = np.tile(model.answers.reshape(len(model.rows), -1), (30, 1))
    np.testing.assert_allclose(call.arrays["output__0"], expected, rtol=1e-5, atol=1e-6)


def test_zeros_that_are_missing_in_some_trees_alone_are_refused(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    model = with_zeros(tmp_path)
    file = tmp_path / "1/model.txt"
    file.write_text(file.read_text().replace("decision_type=", "decision_type=10 ", 1))
    assert "others do not (zero_as_missing)" in refusal(model, text()).message
