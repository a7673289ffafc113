"""Models that TensorFlow executes, against its own answers."""

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import ErrorCode, InferError
from app.core.tensors import Tensor
from backends.base import Instance, Model
from backends.registry.configuration import infer_backend, normalise
from backends.registry.loading import hosted_backend
from backends.tensorflow.backend import TensorFlowBackend
from tests.backends.tensorflow import models
from tests.unit.backend_harness import Served, config, infer

WORDS = ["cat", "dog", "bird"]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    models.write_digits(root / "digits/1/model.savedmodel")
    models.write_digits(root / "fixed/1/model.savedmodel", fixed=4)
    models.write_digits(root / "named/1/model.savedmodel", signature="classify")
    models.write_words(root / "words/1/model.savedmodel", WORDS)
    models.write_add_sub(root / "add_sub/1/model.graphdef")
    models.write_counted(root / "counted/1/model.graphdef")
    models.write_counter(root / "counter/1/model.savedmodel")
    models.write_scalars(root / "scalars/1/model.savedmodel")
    models.write_passing(root / "passing/1/model.graphdef")
    return root


@pytest.fixture
def serve(repository: Path, request: pytest.FixtureRequest) -> Callable[..., Served]:
    def load(name: str, text: str = "", **settings: str) -> Served:
        served = Served(TensorFlowBackend, completed(repository, name, text, **settings))
        request.addfinalizer(served.close)
        return served

    return load


def described(repository: Path, name: str, text: str = "", **settings: str) -> Model:
    listing = {
        f"{path.name}/" if path.is_dir() else path.name for path in (repository / name / "1").iterdir()
    }
    inferred = infer_backend(config(f'name: "{name}" {text}'), listing)
    keys = {key.replace("_", "-"): value for key, value in settings.items()}
    return Model(inferred, 1, repository / name, keys)


def completed(repository: Path, name: str, text: str = "", **settings: str) -> Model:
    model = described(repository, name, text, **settings)
    model.config = normalise(TensorFlowBackend.auto_complete(model))
    return model


def refusal(repository: Path, name: str, text: str = "", **settings: str) -> InferError:
    with pytest.raises(InferError) as caught:
        Served(TensorFlowBackend, completed(repository, name, text, **settings))
    return caught.value


def images(rows: int) -> Any:
    return np.random.default_rng(rows).standard_normal((rows, 64)).astype(np.float32)


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }} '


def test_saved_model_is_completed(repository: Path) -> None:
    found = completed(repository, "digits").config
    assert (found.backend, found.max_batch_size) == ("tensorflow", 4)
    assert [(each.name, each.data_type, list(each.dims)) for each in found.input] == [
        ("image", mc.TYPE_FP32, [64])
    ]
    assert [(each.name, each.data_type, list(each.dims)) for each in found.output] == [
        ("label", mc.TYPE_INT64, [1]),
        ("logits", mc.TYPE_FP32, [10]),
    ]
    assert found.output[0].HasField("reshape") and found.HasField("dynamic_batching")
    assert found.instance_group[0].count == 2


def test_answers_are_those_of_tensorflow(repository: Path, serve: Callable[..., Served]) -> None:
    served, rows = serve("digits"), [images(1), images(2), images(1)]
    expected = tf.saved_model.load(str(repository / "digits/1/model.savedmodel")).signatures[
        "serving_default"
    ]
    for image, call in zip(rows, served(*[infer({"image": image}) for image in rows]), strict=True):
        wanted = expected(image=tf.constant(image))
        np.testing.assert_allclose(call.arrays["logits"], wanted["logits"], rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(call.arrays["label"][:, 0], wanted["label"])


def test_requested_outputs_alone_are_returned(serve: Callable[..., Served]) -> None:
    (call,) = serve("digits")(infer({"image": images(2)}, outputs=["label"]))
    assert list(call.arrays) == ["label"] and call.arrays["label"].shape == (2, 1)


def test_works_without_the_private_callable(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    request = infer({"image": images(3)})
    (usual,) = serve("digits")(request)
    monkeypatch.delattr(tf.compat.v1.Session.__mro__[1], "_make_callable_from_options")
    (slow,) = serve("digits")(request)
    np.testing.assert_array_equal(slow.arrays["logits"], usual.arrays["logits"])


def test_fixed_batch_is_served_whole(serve: Callable[..., Served]) -> None:
    served = serve("fixed")
    assert served.model.config.max_batch_size == 0
    (call,) = served(infer({"image": images(4)}))
    assert call.arrays["logits"].shape == (4, 10)


def test_strings_are_bytes(serve: Callable[..., Served]) -> None:
    words = np.array([[b"dog"], [b"\xff\x00"]], object)
    (call,) = serve("words")(infer({"word": words}))
    assert call.arrays["line"].tolist() == [[1], [-1]]
    assert call.arrays["twice"].tolist() == [[b"dogdog"], [b"\xff\x00\xff\x00"]]


ADD_SUB = """
    max_batch_size: 8
    input { name: "INPUT0" data_type: TYPE_INT32 dims: 16 }
    input { name: "INPUT1" data_type: TYPE_INT32 dims: 16 }
    output { name: "OUTPUT0" data_type: TYPE_INT32 dims: 16 }
    output { name: "OUTPUT1:0" data_type: TYPE_INT32 dims: 16 }
"""


def test_graph_def_is_served_as_declared(serve: Callable[..., Served]) -> None:
    first, second = (np.full((2, 16), value, np.int32) for value in (5, 3))
    (call,) = serve("add_sub", ADD_SUB)(infer({"INPUT1": second, "INPUT0": first}))
    assert call.arrays["OUTPUT0"].tolist() == (first + second).tolist()
    assert call.arrays["OUTPUT1:0"].tolist() == (first - second).tolist()


def test_graph_def_must_be_declared(repository: Path) -> None:
    text = ADD_SUB + 'input { name: "INPUT2" data_type: TYPE_INT32 dims: 16 }'
    assert refusal(repository, "add_sub", text).message == (
        "unable to load model 'add_sub', configuration expects 3 inputs, model provides at most 2"
    )


COUNTED = """
    input { name: "X" data_type: TYPE_FP32 dims: -1 } output { name: "Y" data_type: TYPE_FP32 dims: -1 }
"""


def test_initial_operations_are_executed(repository: Path, serve: Callable[..., Served]) -> None:
    served = serve("counted", COUNTED + parameter("TF_INIT_OPS_FILE", "init.json"))
    (call,) = served(infer({"X": np.ones(3, np.float32)}))
    assert call.arrays["Y"].tolist() == [6, 6, 6]


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        (
            "../../outside.json",
            ErrorCode.INVALID_ARG,
            "TF_INIT_OPS_FILE '../../outside.json' escapes the directory of model 'counted'",
        ),
        ("gone.json", ErrorCode.INTERNAL, "failed to open text file for read "),
        ("1/model.graphdef", ErrorCode.INVALID_ARG, "has no list of names 'init_ops'"),
    ],
)
def test_file_of_initial_operations_is_checked(
    repository: Path, name: str, code: ErrorCode, message: str
) -> None:
    (repository.parent / "outside.json").write_text('{"init_ops": ["init"]}')
    (repository / "outside.json").write_text('{"init_ops": ["init"]}')
    error = refusal(repository, "counted", COUNTED + parameter("TF_INIT_OPS_FILE", name))
    assert error.code is code and message in error.message


def test_signature_is_chosen(repository: Path, serve: Callable[..., Served]) -> None:
    assert serve("named")(infer({"image": images(1)}))[0].arrays["label"].shape == (1, 1)
    serve("named", parameter("TF_SIGNATURE_DEF", "classify"))
    prefix = "unable to auto-complete model configuration for 'named', failed to load model: "
    for key, value, what in [("TF_SIGNATURE_DEF", "other", "signature"), ("TF_GRAPH_TAG", "train", "tag")]:
        error = refusal(repository, "named", parameter(key, value))
        assert error.code is ErrorCode.INTERNAL
        assert error.message == f"{prefix}unable to load model 'named', expected '{value}' {what}"


def test_asset_outside_of_the_model_is_refused(repository: Path, tmp_path: Path) -> None:
    from tensorflow.core.protobuf import saved_model_pb2

    models.write_words(tmp_path / "m/1/model.savedmodel", WORDS)
    path = tmp_path / "m/1/model.savedmodel/saved_model.pb"
    saved = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    saved.meta_graphs[0].asset_file_def[0].filename = "../../../../secret.txt"
    path.write_bytes(saved.SerializeToString())
    assert (
        "asset '../../../../secret.txt' escapes the directory of model 'm'" in refusal(tmp_path, "m").message
    )


def test_library_of_operations_outside_of_the_model_is_refused(repository: Path, tmp_path: Path) -> None:
    text = f'model_operations {{ op_library_filename: "{tmp_path}/ops.so" }}'
    error = refusal(repository, "digits", text)
    assert error.code is ErrorCode.INVALID_ARG
    assert "outside the model's directory: --backend-config=tensorflow,extension-directory=" in error.message
    assert (
        "ops.so: cannot open"
        in refusal(repository, "digits", text, extension_directory=str(tmp_path)).message
    )


def test_model_with_state_sees_no_other_requests(serve: Callable[..., Served]) -> None:
    """Not even that of the warm-up."""
    served = serve("counter")
    counts = [
        served(infer({"x": np.zeros((1, 1), np.float32)}))[0].arrays["count"].tolist() for _ in range(2)
    ]
    assert counts == [[[1.0]], [[2.0]]]


def test_model_without_state_is_executed_at_its_load(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    from backends.tensorflow.sessions import TfSession

    runs: list[Any] = []
    run = TfSession.run

    def record(session: TfSession, *args: Any) -> dict[str, Any]:
        runs.append(args)
        return run(session, *args)

    monkeypatch.setattr(TfSession, "run", record)
    for name in ("digits", "words", "counter"):
        serve(name)
    assert [list(inputs) for inputs, _ in runs] == [["image"], ["word"]]


def test_scalar_is_served_as_one_element(serve: Callable[..., Served]) -> None:
    served = serve("scalars")
    assert served.model.config.max_batch_size == 0
    (call,) = served(infer({"x": np.array([3.0], np.float32)}))
    assert call.arrays["double"].tolist() == [6.0] and call.arrays["name"].tolist() == [b"scalar"]


@pytest.mark.parametrize("count", [64, 4096])
def test_output_never_has_the_memory_of_an_input(count: int, serve: Callable[..., Served]) -> None:
    """Requests lie in memory that is written to again; TensorFlow shares it if it is aligned."""
    served = serve("passing", COUNTED)
    space = np.zeros(count + 16, np.float32)
    start = -space.ctypes.data % 64 // 4
    row = space[start : start + count]
    row[:] = 3
    (call,) = served(infer({"X": Tensor("X", "FP32", (count,), row.data.cast("B"))}))
    answer = call.arrays["Y"]
    row[:] = 9
    assert answer.tolist() == [3.0] * count


def test_instances_share_a_session_as_far_as_allowed(repository: Path) -> None:
    def sessions(text: str) -> int:
        model = completed(repository, "digits", text)
        backend = TensorFlowBackend()
        backend.model_initialize(model)
        instances = [Instance(model, f"digits_0_{index}", index=index) for index in range(3)]
        for instance in instances:
            backend.instance_initialize(instance)
        count = len({id(instance.state) for instance in instances})
        for instance in instances:
            backend.instance_finalize(instance)
        return count

    assert sessions("") == 1
    assert sessions(parameter("MAX_SESSION_SHARE_COUNT", "2")) == 2
    assert sessions(parameter("MAX_SESSION_SHARE_COUNT", "1")) == 3


def test_instances_execute_at_the_same_time(tmp_path: Path) -> None:
    """With one session, whose operations run on the threads of the instances."""
    meeting = threading.Barrier(2, timeout=20)

    def meet(value: Any) -> Any:
        meeting.wait()
        return value

    with tf.Graph().as_default() as graph:
        met = tf.numpy_function(meet, [tf.compat.v1.placeholder(tf.float32, (None,), "X")], tf.float32)
        tf.identity(met, "Y")
    (tmp_path / "m/1").mkdir(parents=True)
    (tmp_path / "m/1/model.graphdef").write_bytes(graph.as_graph_def().SerializeToString())
    model = completed(tmp_path, "m", COUNTED)
    backend = TensorFlowBackend()
    backend.model_initialize(model)
    instances = [Instance(model, f"m_0_{index}", index=index) for index in range(2)]
    for instance in instances:
        backend.instance_initialize(instance)
    assert instances[0].state is instances[1].state
    answers: list[Any] = []

    def execute(instance: Instance) -> None:
        answers.append(backend.execute(instance.state, {"X": np.ones(1, np.float32)}, ["Y"])["Y"])

    threads = [threading.Thread(target=execute, args=(instance,)) for instance in instances]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [answer.tolist() for answer in answers] == [[1.0], [1.0]]
    for instance in instances:
        backend.instance_finalize(instance)


@pytest.mark.parametrize("name", ["tensorrt", "auto_mixed_precision", "gpu_io"])
def test_accelerators_of_a_gpu_leave_the_answers(repository: Path, name: str) -> None:
    """Without a GPU, operations are placed softly on the CPU."""
    accelerator = f'execution_accelerators {{ gpu_execution_accelerator {{ name: "{name}" }} }}'
    model = completed(repository, "digits", f"optimization {{ {accelerator} }}")
    served = Served(TensorFlowBackend, model, kind="GPU")
    (call,) = served(infer({"image": images(2)}))
    served.close()
    (usual,) = Served(TensorFlowBackend, completed(repository, "digits"))(infer({"image": images(2)}))
    np.testing.assert_allclose(call.arrays["logits"], usual.arrays["logits"], rtol=1e-4, atol=1e-4)


def test_error_of_tensorflow_is_one_line(serve: Callable[..., Served]) -> None:
    served = serve("add_sub", ADD_SUB.replace("dims: 16", "dims: -1"))
    rows = [np.zeros((1, size), np.int32) for size in (16, 3)]
    (call,) = served(infer({"INPUT0": rows[0], "INPUT1": rows[1]}))
    assert call.error == "Incompatible shapes: [1,16] vs. [1,3]"


def test_missing_file(repository: Path) -> None:
    error = refusal(repository, "digits", 'platform: "tensorflow_savedmodel" default_model_filename: "gone"')
    assert error.code is ErrorCode.UNAVAILABLE
    assert error.message == (f"unable to find '{repository}/digits/1/gone' for model instance 'digits_0_0'")


def test_other_platform(repository: Path) -> None:
    error = refusal(repository, "digits", 'backend: "tensorflow" platform: "tensorflow_lite"')
    assert error.message == "platform tensorflow_lite not supported for TensorFlow model 'digits'"


def test_broken_files_are_told(tmp_path: Path) -> None:
    (tmp_path / "m/1/model.savedmodel").mkdir(parents=True)
    assert "SavedModel file does not exist at: " in refusal(tmp_path, "m").message
    (tmp_path / "m/1/model.savedmodel/saved_model.pb").write_bytes(b"\xff\xff")
    assert "unable to parse '" in refusal(tmp_path, "m").message
    (tmp_path / "g/1").mkdir(parents=True)
    (tmp_path / "g/1/model.graphdef").write_bytes(b"")
    assert refusal(tmp_path, "g", COUNTED).message == "model g has an empty network"


def test_a_process_of_another_environment_answers_alike(
    repository: Path, serve: Callable[..., Served]
) -> None:
    """TENSORFLOW_PYTHON is an interpreter with TensorFlow, of any version; this one's own by default."""
    kind = hosted_backend("tensorflow")
    here = serve("digits")
    model = described(repository, "digits")
    model.interpreter = Path(os.environ.get("TENSORFLOW_PYTHON", sys.executable))
    model.config = normalise(kind.auto_complete(model))
    assert model.config == here.model.config
    there = Served(kind, model)
    second = Instance(model, "digits_0_1", index=1)
    there.backend.instance_initialize(second)
    assert second.state.pid == there.instance.state.pid != os.getpid()
    requests = [infer({"image": images(rows)}) for rows in (1, 3)]
    for mine, theirs in zip(here(*requests), there(*requests), strict=True):
        np.testing.assert_allclose(theirs.arrays["logits"], mine.arrays["logits"], rtol=1e-4, atol=1e-4)
    wrong = infer({"image": images(1)[:, :63]})
    assert there(wrong)[0].error == here(wrong)[0].error
    there.backend.instance_finalize(second)
    there.close()
