"""Paddle models in the environment of the packaged backend, against Paddle's own answers."""

import logging
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from app.core.datatypes import DATATYPES
from app.core.errors import InferError
from backends.base import Instance, Model
from tests.backends.packaged import failed_at_once, serve_model, write_models
from tests.unit.backend_harness import Call, Served, config, infer

DENSE = """
    max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: 16 }
    output { name: "%s" data_type: TYPE_FP32 dims: 4 }
"""
SHARED = 'parameters { key: "INSTANCES_SHARE_PROCESS" value { string_value: "true" } }'
TWO = """
    max_batch_size: 8
    input { name: "b" data_type: TYPE_INT64 dims: 2 } input { name: "a" data_type: TYPE_INT64 dims: 2 }
    output { name: "SUM" data_type: TYPE_INT64 dims: 2 }
    output { name: "DIFFERENCE" data_type: TYPE_INT64 dims: 2 }
"""


SAME = """
    max_batch_size: 8 input { name: "x" data_type: TYPE dims: 3 } output { name: "y" data_type: TYPE dims: 3 }
"""


def accelerator(name: str, **parameters: str) -> str:
    given = " ".join(f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in parameters.items())
    listed = f'cpu_execution_accelerator {{ name: "{name}" {given} }}'
    return f"optimization {{ execution_accelerators {{ {listed} }} }}"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_models("paddle", Path(__file__).with_name("write_models.py"), root)
    return root


@pytest.fixture
def serve(repository: Path, request: pytest.FixtureRequest) -> Callable[[str, str], Served]:
    def load(name: str, text: str) -> Served:
        model = Model(config(f'name: "{name}" backend: "paddle" {text}'), 1, repository / name)
        return serve_model("paddle", model, request.addfinalizer)

    return load


def test_models_load_at_once(repository: Path, tmp_path: Path) -> None:
    assert failed_at_once("paddle", repository / "dense", DENSE % "fetch_name_0", tmp_path) == []


def test_model_without_tensors_is_refused(serve: Callable[[str, str], Served]) -> None:
    with pytest.raises(InferError, match="must declare its inputs and outputs: they are not completed"):
        serve("dense", "")


def test_input_that_is_not_declared_is_told(serve: Callable[[str, str], Served]) -> None:
    text = TWO.replace('input { name: "b" data_type: TYPE_INT64 dims: 2 }', "")
    with pytest.raises(InferError, match="configuration expects 1 inputs, model provides 2: a, b"):
        serve("two", text)


@pytest.mark.parametrize("output", ["fetch_name_0", "probabilities"])
def test_answers_are_those_of_paddle(
    repository: Path, serve: Callable[[str, str], Served], output: str
) -> None:
    """Outputs are found by order too: Paddle loses their names."""
    expected = np.load(repository / "dense" / "expected.npz")
    x, y = expected["x"], expected["y"]
    calls = serve("dense", DENSE % output)(infer({"x": x[:2]}), infer({"x": x[2:]}))
    found = np.concatenate([call.arrays[output] for call in calls])
    np.testing.assert_allclose(found, y, rtol=1e-5, atol=1e-5)


def test_program_of_paddle_2(repository: Path, serve: Callable[[str, str], Served]) -> None:
    """Its file has the name that Triton's backend knows."""
    assert {path.suffix for path in (repository / "old" / "1").iterdir()} >= {".pdmodel", ".pdiparams"}
    expected = np.load(repository / "dense" / "expected.npz")
    (call,) = serve("old", DENSE % "y")(infer({"x": expected["x"]}))
    np.testing.assert_allclose(call.arrays["y"], expected["y"], rtol=1e-5, atol=1e-5)


def test_several_inputs_and_outputs(serve: Callable[[str, str], Served]) -> None:
    a, b = np.array([[5, 7]]), np.array([[1, 2]])
    (call,) = serve("two", TWO)(infer({"a": a, "b": b}))
    assert call.arrays["SUM"].tolist() == [[6, 9]] and call.arrays["DIFFERENCE"].tolist() == [[4, 5]]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", [r"enable_mkldnn +\| true", r"mkldnn_cache_capacity +\| 10"]),
        (
            accelerator("mkldnn", cpu_threads="2", capacity="5"),
            [r"cpu_math_thread +\| 2", r"mkldnn_cache_capacity +\| 5"],
        ),
        (accelerator("mkldnn", use_int8="1"), [r"enable_mkldnn +\| true"]),
        (accelerator("ort"), ["built without ONNX Runtime and executes the model itself"]),
    ],
    ids=["none", "mkldnn", "int8", "ort"],
)
def test_accelerators_leave_the_answers(
    repository: Path,
    serve: Callable[[str, str], Served],
    text: str,
    told: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of this model; one that was quantised is the only one that `use_int8` changes."""
    caplog.set_level(logging.DEBUG)
    expected = np.load(repository / "dense" / "expected.npz")
    (call,) = serve("dense", DENSE % "y" + text)(infer({"x": expected["x"]}))
    np.testing.assert_allclose(call.arrays["y"], expected["y"], rtol=1e-4, atol=1e-4)
    for each in told:
        assert re.search(each, caplog.text)


@pytest.mark.parametrize("data_type", ["BOOL", "UINT8", "INT8", "INT32", "INT64", "FP16", "FP32", "FP64"])
def test_data_types(data_type: str, serve: Callable[[str, str], Served]) -> None:
    dtype = DATATYPES[data_type].dtype
    given = np.array([[0, 1, 3]]).astype(dtype)
    (call,) = serve(f"same_{dtype}", SAME.replace("TYPE", f"TYPE_{data_type}"))(infer({"x": given}))
    assert call.arrays["y"].dtype == dtype and call.arrays["y"].tolist() == given.tolist()


def test_program_without_parameters(
    repository: Path, serve: Callable[[str, str], Served], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    weights = repository / "two" / "1" / "model.pdiparams"
    kept = weights.read_bytes() if weights.exists() else None
    weights.unlink(missing_ok=True)
    try:
        (call,) = serve("two", TWO)(infer({"a": np.array([[5, 7]]), "b": np.array([[1, 2]])}))
    finally:
        if kept is not None:
            weights.write_bytes(kept)
    assert call.arrays["SUM"].tolist() == [[6, 9]]
    assert "Paddle params should be named as 'model.pdiparams' or not provided." in caplog.text


def test_nothing_is_completed(repository: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Which Triton's backend says, too."""
    caplog.set_level(logging.WARNING)
    model = Model(config('name: "dense" backend: "paddle"' + DENSE % "y"), 1, repository / "dense")
    ends: list[Callable[[], None]] = []
    serve_model("paddle", model, ends.append, completed=True)
    for end in reversed(ends):
        end()
    told = "skipping model configuration auto-complete for 'dense': not supported for paddle backend"
    assert told in caplog.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            DENSE % "y" + accelerator("openvino"),
            "unknown cpu_execution_accelerator name 'openvino' is provided. Available choices are"
            " [mkldnn, ort]",
        ),
        (DENSE.replace('"x"', '"z"') % "y", "unexpected inference input 'z', allowed inputs are: x"),
        (
            DENSE % "y" + 'default_model_filename: "net.pdmodel"',
            "Paddle model should be named as 'model.pdmodel'",
        ),
    ],
)
def test_model_that_cannot_be_served(serve: Callable[[str, str], Served], text: str, message: str) -> None:
    with pytest.raises(InferError) as caught:
        serve("dense", text)
    assert message in caught.value.message


def test_instances_of_one_process_clone_the_predictor(
    repository: Path, serve: Callable[[str, str], Served]
) -> None:
    expected = np.load(repository / "dense" / "expected.npz")
    served = serve("dense", DENSE % "y" + SHARED)
    others = [Instance(served.model, f"dense_0_{index}", index=index) for index in (1, 2)]
    for other in others:
        served.backend.instance_initialize(other)
    every = [served.instance, *others]
    assert len({instance.state.pid for instance in every}) == 1
    calls = [(instance, Call(infer({"x": expected["x"]}))) for instance in every for _ in range(20)]
    with ThreadPoolExecutor(len(every)) as threads:
        for instance in every:
            batches = [[call] for owner, call in calls if owner is instance]
            threads.submit(lambda i=instance, b=batches: [served.backend.instance_execute(i, e) for e in b])  # type: ignore[misc]
    for _, call in calls:
        np.testing.assert_allclose(call.arrays["y"], expected["y"], rtol=1e-5, atol=1e-5)
    for other in others:
        served.backend.instance_finalize(other)
