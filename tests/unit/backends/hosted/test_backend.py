"""A built-in backend in a process of another environment, beside the same one in this process."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import ErrorCode, InferError
from backends.base import Instance, Model
from backends.registry.descriptions import described, descriptions
from backends.registry.loading import find_backend, hosted_backend
from backends.registry.place import BackendPlace
from tests import environments
from tests.unit.backend_harness import Call, Served, config, infer
from tests.waiting import block_until

CONFIG = """
    name: "m" backend: "onnxruntime" max_batch_size: 8 instance_group { count: 2 kind: KIND_CPU }
    input { name: "X" data_type: TYPE_FP32 dims: 2 } output { name: "Y" data_type: TYPE_FP32 dims: 2 }
"""
HERE = find_backend(BackendPlace("onnxruntime"))
THERE = hosted_backend("onnxruntime")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the framework and protobuf, and no other package of ours."""
    folder = tmp_path_factory.mktemp("environment") / "env"
    return environments.borrow(folder, "numpy", "google", "onnxruntime")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that doubles rows of two numbers, and fails for a batch of seven."""
    folder = tmp_path_factory.mktemp("models") / "m"
    nodes = [
        helper.make_node("Add", ["X", "X"], ["Z"]),
        helper.make_node("Reshape", ["Z", "shape"], ["Y"]),
    ]
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in ("X", "Y")]
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [-1, 2])
    graph = helper.make_graph(nodes, "g", tensors[:1], tensors[1:], [shape])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").write_bytes(made.SerializeToString())
    return folder


def model(directory: Path, python: Path, text: str = CONFIG, **settings: str) -> Model:
    made = Model(config(text), 1, directory, settings)
    made.interpreter = python
    return made


@pytest.fixture(scope="module")
def served(directory: Path, python: Path) -> Iterator[Served]:
    made = Served(THERE, model(directory, python))
    yield made
    made.close()


def rows(count: int) -> Any:
    return np.random.default_rng(count).standard_normal((count, 2)).astype(np.float32)


def test_the_replica_imports_no_framework() -> None:
    source = "import sys; from backends.registry.loading import hosted_backend; hosted_backend('tensorflow')"
    source += "; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert "'backends.hosted.backend'" in done.stdout and "'tensorflow'" not in done.stdout


def test_answers_are_those_of_the_backend_in_the_replica(served: Served, directory: Path) -> None:
    here = Served(HERE, config(CONFIG), directory)
    batch = [infer({"X": rows(count)}, id=str(count)) for count in (1, 2, 3)]
    for mine, theirs in zip(here(*batch), served(*batch), strict=True):
        assert mine.arrays["Y"].tolist() == theirs.arrays["Y"].tolist()
        assert mine.responses[0].id == theirs.responses[0].id
    assert served.instance.compute_end_ns >= served.instance.compute_start_ns > 0
    here.close()


def test_large_tensors_pass(served: Served) -> None:
    large = rows(100_000)
    (call,) = served(infer({"X": large}))
    np.testing.assert_array_equal(call.arrays["Y"], large * 2)


def test_errors_are_those_of_the_backend_in_the_replica(
    served: Served, directory: Path, tmp_path: Path, python: Path
) -> None:
    here = Served(HERE, config(CONFIG), directory)
    bad, good = infer({"X": np.ones((1, 3), np.float32)}), infer({"X": rows(1)})
    for each in (here, served):
        failed, answered = each(bad, good)
        assert answered.arrays["Y"].shape == (1, 2)
        assert failed.error == here(bad)[0].error
    here.close()
    other = CONFIG.replace("dims: 2 } output", "dims: 3 } output")
    errors = []
    for kind in (HERE, THERE):
        with pytest.raises(InferError) as caught:
            Served(kind, model(directory, python, other))
        errors.append((caught.value.code, caught.value.message))
    assert errors[0] == errors[1]


def test_configurations_are_completed(directory: Path, python: Path) -> None:
    declared = 'name: "m" backend: "onnxruntime"'
    mine, theirs = (kind.auto_complete(model(directory, python, declared)) for kind in (HERE, THERE))
    assert mine == theirs and theirs.input[0].data_type == mc.TYPE_FP32


def test_instances_share_a_process(served: Served, directory: Path) -> None:
    second = Instance(served.model, "m_0_1", index=1)
    served.backend.instance_initialize(second)
    assert second.state.pid == served.instance.state.pid
    calls = [Call(infer({"X": rows(count)})) for count in range(1, 9)]
    threads = [
        threading.Thread(target=served.backend.instance_execute, args=(instance, calls[place::2]))
        for place, instance in enumerate((served.instance, second))
    ]
    for thread in threads:
        thread.start()
    for call, count in zip(calls, range(1, 9), strict=True):
        np.testing.assert_array_equal(call.arrays["Y"], rows(count) * 2)
    for thread in threads:
        thread.join()
    first = second.state.pid
    os.kill(first, signal.SIGKILL)
    block_until(lambda: first != second.state.pid == served.instance.state.pid != 0, "both are there again")
    began = time.monotonic()
    served.backend.instance_finalize(second)
    assert time.monotonic() - began < 10, "it does not wait for the process, which goes on"
    assert served(infer({"X": rows(1)}))[0].arrays["Y"].shape == (1, 2)


def test_instances_may_have_a_process_each(directory: Path, python: Path) -> None:
    text = CONFIG + 'parameters { key: "INSTANCES_SHARE_PROCESS" value { string_value: "false" } }'
    served = Served(THERE, model(directory, python, text))
    second = Instance(served.model, "m_0_1", index=1)
    served.backend.instance_initialize(second)
    assert second.state.pid != served.instance.state.pid
    served.backend.instance_finalize(second)
    served.close()


@pytest.mark.parametrize(
    ("there", "missing"), [(("numpy", "google"), "ONNX Runtime"), (("numpy",), "protobuf")]
)
def test_missing_packages_are_named_with_the_command(
    there: tuple[str, ...], missing: str, directory: Path, tmp_path: Path
) -> None:
    python = environments.borrow(tmp_path / "env", *there)
    with pytest.raises(InferError) as caught:
        Served(THERE, model(directory, python))
    assert caught.value.code is ErrorCode.UNSUPPORTED
    file = described("onnxruntime").requirements
    assert caught.value.message == (
        f"backend 'onnxruntime' needs {missing}, which the environment {tmp_path / 'env'} does not have:"
        f" {python} -m pip install -r {file}"
    )


@pytest.mark.parametrize("name", [each.name for each in descriptions() if each.hosted])
def test_requirements_are_what_the_server_is_tested_with(name: str) -> None:
    root = Path(__file__).parents[4]
    pins = {line.strip().lower() for line in (root / "constraints.txt").read_text().splitlines()}
    lines = described(name).requirements.read_text().split()
    assert {line.lower() for line in lines} - pins <= {"setuptools==84.2.1"}
    assert any(line.startswith("protobuf==") for line in lines)
