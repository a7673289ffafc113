"""Compiled models in the environment of the packaged backend, against numpy."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from app.core.errors import InferError
from backends.base import Model
from tests.backends.packaged import failed_at_once, serve_model, write_models
from tests.unit.backend_harness import Served, config, infer

Serve = Callable[[str, str], Served]
DENSE = """
    max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: 16 }
    output { name: "y" data_type: TYPE_FP32 dims: 4 }
"""
TWO = """
    max_batch_size: 8 input { name: "b" data_type: TYPE_INT64 dims: 2 }
    input { name: "a" data_type: TYPE_INT64 dims: 2 }
    output { name: "SUM" data_type: TYPE_INT64 dims: 2 }
    output { name: "DIFFERENCE" data_type: TYPE_INT64 dims: 2 }
"""
BOTH = 'parameters { key: "function" value { string_value: "both" } }'


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_models("tvm", Path(__file__).with_name("write_models.py"), root)
    (root / "dense" / "1" / "text.so").write_text("no library")
    return root


@pytest.fixture
def serve(repository: Path, request: pytest.FixtureRequest) -> Iterator[Serve]:
    def load(name: str, text: str) -> Served:
        model = Model(config(f'name: "{name}" backend: "tvm" {text}'), 1, repository / name)
        return serve_model("tvm", model, request.addfinalizer)

    yield load


def test_models_load_at_once(repository: Path, tmp_path: Path) -> None:
    assert failed_at_once("tvm", repository / "dense", DENSE, tmp_path) == []


def test_model_without_tensors_is_refused(serve: Serve) -> None:
    with pytest.raises(InferError, match="must declare its inputs and outputs: they are not completed"):
        serve("dense", "")


def test_answers_are_those_of_numpy(repository: Path, serve: Serve) -> None:
    weights = np.load(repository / "weights.npz")
    x = np.random.default_rng(1).standard_normal((5, 16), np.float32)
    hidden = np.maximum(x @ weights["first.weight"].T + weights["first.bias"], 0)
    expected = hidden @ weights["second.weight"].T + weights["second.bias"]
    calls = serve("dense", DENSE)(infer({"x": x[:2]}), infer({"x": x[2:]}))
    found = [call.arrays["y"] for call in calls]
    assert [len(each) for each in found] == [2, 3]
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-4, atol=1e-4)


def test_inputs_are_found_by_name_and_outputs_by_position(serve: Serve) -> None:
    """The function's parameters are a and b."""
    (call,) = serve("two", TWO + BOTH)(infer({"b": np.array([[1, 2]]), "a": np.array([[5, 7]])}))
    assert call.arrays["SUM"].tolist() == [[6, 9]] and call.arrays["DIFFERENCE"].tolist() == [[4, 5]]


def test_responses_outlive_the_next_request(serve: Serve) -> None:
    served = serve("two", TWO + BOTH)
    calls = [served(infer({"a": np.full((1, 2), i), "b": np.zeros((1, 2), np.int64)}))[0] for i in range(8)]
    assert [call.arrays["SUM"][0, 0] for call in calls] == list(range(8))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("two", TWO, "model 'two' has no function 'main'; parameter 'function' names another"),
        (
            "dense",
            DENSE.replace('"x"', '"z"'),
            "model 'dense': function 'main' has the parameters x, but the configuration the inputs z",
        ),
        ("dense", DENSE + 'default_model_filename: "no.so"', "/dense/1/no.so' for model 'dense'"),
        ("dense", DENSE + 'default_model_filename: "text.so"', "Failed to load dynamic shared library"),
        (
            "dense",
            DENSE + 'default_model_filename: "../../two/1/model.so"',
            "escapes the directory of model 'dense'",
        ),
        (
            "dense",
            DENSE + 'parameters { key: "num_threads" value { string_value: "many" } }',
            "parameter 'num_threads' of model 'dense' must be a positive integer, got 'many'",
        ),
    ],
)
def test_model_that_cannot_be_served(serve: Serve, name: str, text: str, message: str) -> None:
    with pytest.raises(InferError) as caught:
        serve(name, text)
    assert message in caught.value.message


def test_request_that_does_not_fit_has_the_reason_of_tvm(serve: Serve) -> None:
    served = serve("dense", DENSE.replace("dims: 16", "dims: -1"))
    (call,) = served(infer({"x": np.zeros((1, 5), np.float32)}))
    assert "shape[1] mismatch to specified constant" in call.error


def test_number_of_results_must_be_that_of_the_outputs(serve: Serve) -> None:
    one = TWO.replace('output { name: "DIFFERENCE" data_type: TYPE_INT64 dims: 2 }', "")
    zeros = np.zeros((1, 2), np.int64)
    (call,) = serve("two", one + BOTH)(infer({"a": zeros, "b": zeros}))
    assert "the model returns 2 tensors for 1 outputs" in call.error
