"""Paddle models in the environment of the packaged backend, against Paddle's own answers."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from app.core.errors import InferError
from backends.base import Instance, Model
from tests.backends.packaged import serve_model, write_models
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


def test_several_inputs_and_outputs(serve: Callable[[str, str], Served]) -> None:
    a, b = np.array([[5, 7]]), np.array([[1, 2]])
    (call,) = serve("two", TWO)(infer({"a": a, "b": b}))
    assert call.arrays["SUM"].tolist() == [[6, 9]] and call.arrays["DIFFERENCE"].tolist() == [[4, 5]]


def test_accelerator_leaves_the_answers(repository: Path, serve: Callable[[str, str], Served]) -> None:
    expected = np.load(repository / "dense" / "expected.npz")
    threads = accelerator('name: "mkldnn" parameters { key: "cpu_threads" value: "2" }')
    served = serve("dense", DENSE % "y" + threads)
    (call,) = served(infer({"x": expected["x"]}))
    np.testing.assert_allclose(call.arrays["y"], expected["y"], rtol=1e-4, atol=1e-4)


def accelerator(text: str) -> str:
    return f"optimization {{ execution_accelerators {{ cpu_execution_accelerator {{ {text} }} }} }}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            DENSE % "y" + accelerator('name: "openvino"'),
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
