"""DALI models in the environment of the packaged backend, against DALI's own answers."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app.core.errors import InferError
from app.core.system.cpus import available_cpus
from backends.base import Model
from tests.backends.packaged import serve_model, write_models
from tests.unit.backend_harness import Served, config, infer

Serve = Callable[..., Served]
SIZES = ((64, 48), (40, 80), (100, 30))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for index, (width, height) in enumerate(SIZES):
        squares = np.random.default_rng(index).integers(0, 256, (height // 8, width // 8, 3), np.uint8)
        Image.fromarray(squares).resize((width, height)).save(root / f"{index}.jpg")
    write_models("dali", Path(__file__).with_name("write_models.py"), root)
    return root


@pytest.fixture
def serve(repository: Path, request: pytest.FixtureRequest) -> Iterator[Serve]:
    def load(name: str, text: str = "", completed: bool = True, **settings: str) -> Served:
        declared = config(f'name: "{name}" backend: "dali" {text}')
        model = Model(declared, 1, repository / name, settings)
        return serve_model("dali", model, request.addfinalizer, completed)

    yield load


def encoded(repository: Path) -> list[np.ndarray]:
    return [np.fromfile(path, np.uint8)[None] for path in sorted(repository.glob("*.jpg"))]


def test_pictures_of_different_sizes_are_one_batch(repository: Path, serve: Serve) -> None:
    served = serve("pictures")
    calls = served(*(infer({"ENCODED": each}) for each in encoded(repository)))
    (output,) = served.model.config.output
    found = np.concatenate([call.arrays[output.name] for call in calls])
    np.testing.assert_array_equal(found, np.load(repository / "expected.npy"))


def test_configuration_is_that_of_the_pipeline(serve: Serve) -> None:
    found = serve("pictures").model.config
    assert found.max_batch_size == 8 and found.HasField("dynamic_batching")
    (given,) = found.input
    assert (given.name, given.data_type, list(given.dims)) == ("ENCODED", given_type("TYPE_UINT8"), [-1])
    assert given.allow_ragged_batch
    assert found.output[0].data_type == given_type("TYPE_FP32") and list(found.output[0].dims) == [-1, -1, -1]


def given_type(name: str) -> int:
    return int(config(f"input {{ data_type: {name} }}").input[0].data_type)


def test_python_file_of_another_name(repository: Path, serve: Serve) -> None:
    folder = repository / "renamed" / "1"
    folder.mkdir(parents=True)
    shutil.copy(repository / "pictures" / "1" / "dali.py", folder / "pipeline.py")
    served = serve("renamed", 'default_model_filename: "pipeline.py"')
    assert served.model.config.input[0].name == "ENCODED"


def test_picture_that_is_none_fails_alone(repository: Path, serve: Serve) -> None:
    served = serve("pictures")
    first, second, _ = encoded(repository)
    broken = np.zeros((1, 100), np.uint8)
    calls = served(infer({"ENCODED": first}), infer({"ENCODED": broken}), infer({"ENCODED": second}))
    assert "Critical error in pipeline" in calls[1].error
    name = served.model.config.output[0].name
    found = [calls[index].arrays[name][0] for index in (0, 2)]
    np.testing.assert_array_equal(found, np.load(repository / "expected.npy")[:2])


def test_serialized_pipeline_with_names_of_the_configuration(serve: Serve) -> None:
    text = """
        max_batch_size: 2 input { name: "B" dims: -1 }
        output { name: "SUM" dims: 3 } output { name: "DOUBLE" data_type: TYPE_FP32 }
    """
    served = serve("numbers", text)
    assert served.model.config.max_batch_size == 2
    assert [each.name for each in served.model.config.input] == ["B", "A"]
    a, b = np.array([[1, 2, 3]], np.int32), np.array([[4, 5, 6]], np.int32)
    calls = served(infer({"A": a, "B": b}), infer({"A": b, "B": b}))
    assert [call.arrays["SUM"].tolist() for call in calls] == [[[5, 7, 9]], [[8, 10, 12]]]
    assert calls[1].arrays["DOUBLE"].tolist() == [[8.0, 10.0, 12.0]]


def test_requests_have_shapes_of_their_own(serve: Serve) -> None:
    served = serve("numbers", 'output { name: "SUM" } output { name: "DOUBLE" data_type: TYPE_FP32 }')
    ones = [np.ones((2, 3), np.int32), np.ones((1, 5), np.int32)]
    calls = served(*(infer({"A": each, "B": each}) for each in ones))
    assert [call.arrays["SUM"].shape for call in calls] == [(2, 3), (1, 5)]
    assert all((call.arrays["DOUBLE"] == 2).all() for call in calls)


def test_outer_axis_of_samples_becomes_that_of_the_batch(serve: Serve) -> None:
    parameter = 'parameters { key: "split_along_outer_axis" value { string_value: "FRAMES" } }'
    served = serve("frames", parameter)
    assert list(served.model.config.output[0].dims) == [-1]
    x = np.arange(12, dtype=np.int32).reshape(2, 3, 2)
    calls = served(infer({"X": x}), infer({"X": x[:1] + 20}))
    assert calls[0].arrays["FRAMES"].tolist() == x.reshape(6, 2).tolist()
    assert calls[1].arrays["FRAMES"].tolist() == (x[0] + 20).tolist()


def test_model_without_batches_has_the_batch_in_its_dimensions(repository: Path, serve: Serve) -> None:
    file = repository / "frames" / "config.pbtxt"
    file.write_text("max_batch_size: 0\n")
    try:
        served = serve("frames")
    finally:
        file.unlink()
    found = served.model.config
    assert found.max_batch_size == 0 and not found.HasField("dynamic_batching")
    assert list(found.input[0].dims) == [-1, -1, -1]
    x = np.arange(6, dtype=np.int32).reshape(1, 3, 2)
    (call,) = served(infer({"X": x}))
    assert call.arrays["FRAMES"].tolist() == x.tolist()


def test_responses_outlive_the_next_batch(serve: Serve) -> None:
    served = serve("frames")
    x = np.arange(6, dtype=np.int32).reshape(1, 3, 2)
    calls = [served(infer({"X": x + step}))[0] for step in range(8)]
    assert [call.arrays["FRAMES"][0, 0, 0] for call in calls] == list(range(8))


def test_threads_are_those_of_the_parameter_else_a_share_of_the_cpus(serve: Serve) -> None:
    """The pipeline wants 4 of them."""
    five = serve("pictures", 'parameters { key: "num_threads" value { string_value: "5" } }')
    assert pool_threads(five) == 5
    assert pool_threads(serve("pictures")) == min(4, available_cpus())


def pool_threads(served: Served) -> int:
    """Count the threads of DALI's pool in the process of an instance."""
    tasks = Path(f"/proc/{served.instance.state.pid}/task").glob("*/comm")
    return sum(re.match(r"\[DALI\]\[TP\d+\]", task.read_text()) is not None for task in tasks)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "numbers",
            'input { name: "C" }',
            "Configuration file contains config for C but such input is not present in the pipeline.",
        ),
        ("numbers", "", 'Missing data_type config for "'),
        ("twice", "", "Precisely one autoserialize function must exist in the module. Found 2"),
        (
            "missing",
            "",
            "DALI Backend error: Failed to load model file. The program looked in the following locations: ",
        ),
        ("frames", 'default_model_filename: "../../numbers/1/model.dali"', "escapes the directory of model"),
    ],
)
def test_model_that_cannot_be_served(serve: Serve, name: str, text: str, message: str) -> None:
    with pytest.raises(InferError) as caught:
        serve(name, text)
    assert message in caught.value.message


def test_operators_that_cannot_be_loaded_are_logged(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    serve("frames", plugin_libs="/nowhere/liboperators.so")
    assert "Failed to load plugin libs: " in caplog.text


def test_configuration_is_checked_without_completion(serve: Serve) -> None:
    with pytest.raises(InferError, match=r'Missing config for "X" input'):
        serve("frames", 'output { name: "FRAMES" data_type: TYPE_INT32 dims: [-1, -1] }', completed=False)
