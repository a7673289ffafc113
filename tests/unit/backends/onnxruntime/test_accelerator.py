"""ONNX models that OpenVINO executes."""

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from app.core.errors import ErrorCode, InferError
from backends.base import Instance, Model
from backends.onnxruntime.backend import OnnxRuntimeBackend
from tests.unit.backend_harness import Served, config, infer

OPENVINO = 'optimization { execution_accelerators { cpu_execution_accelerator { name: "openvino" } } }'


def write(folder: Path, node: Any, kind: int, shape: list[Any], *initializers: Any, out: int = 0) -> Path:
    """Write a model of one node, x to y, into `<folder>/1`."""
    (folder / "1").mkdir()
    x = helper.make_tensor_value_info("x", kind, shape)
    y = helper.make_tensor_value_info("y", out or kind, shape)
    graph = helper.make_graph([node], "g", [x], [y], list(initializers))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    (folder / "1" / "model.onnx").write_bytes(made.SerializeToString())
    return folder


def matrix(folder: Path) -> Path:
    """y = x W, FP32 [n, 16]."""
    weights = np.random.default_rng(7).normal(size=(16, 16)).astype(np.float32)
    node = helper.make_node("MatMul", ["x", "W"], ["y"])
    return write(folder, node, TensorProto.FLOAT, ["n", 16], onnx.numpy_helper.from_array(weights, "W"))


def serve(folder: Path, accelerated: bool = True, batch: int = 4) -> Served:
    """The model in a folder, with its completed configuration."""
    text = f'name: "m" backend: "onnxruntime" max_batch_size: {batch} {OPENVINO if accelerated else ""}'
    model = Model(config(text), 1, folder)
    model.config.CopyFrom(OnnxRuntimeBackend.auto_complete(model))
    return Served(OnnxRuntimeBackend, model)


def test_answers_are_those_of_onnxruntime(tmp_path: Path) -> None:
    matrix(tmp_path)
    served, own = serve(tmp_path), serve(tmp_path, accelerated=False)
    assert served.instance.state.runs is not None and served.instance.state.session is None
    assert own.instance.state.runs is None
    assert served.model.config.input == own.model.config.input
    for count in (1, 3):
        request = infer({"x": np.random.default_rng(count).normal(size=(count, 16)).astype(np.float32)})
        found, expected = served(request)[0].arrays["y"], own(request)[0].arrays["y"]
        assert found.shape == (count, 16)
        assert np.allclose(found, expected, atol=1e-5)
        assert not (found == 0).any()


def test_instances_share_the_compiled_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve(matrix(tmp_path))
    compiled = served.model.state.openvino
    second = Instance(served.model, "m_0_1", index=1)
    served.backend.instance_initialize(second)
    assert served.model.state.openvino is compiled
    assert second.state.runs is not served.instance.state.runs
    assert not served.model.state.by_group


def test_scalars(tmp_path: Path) -> None:
    folder = write(tmp_path, helper.make_node("Neg", ["x"], ["y"]), TensorProto.FLOAT, [])
    served = serve(folder, batch=0)
    assert served.instance.state.runs is not None
    assert served(infer({"x": np.array([5], np.float32)}))[0].arrays["y"].tolist() == [-5]


@pytest.mark.parametrize(
    ("node", "kind", "out", "array", "expected", "reason"),
    [
        (
            helper.make_node("Identity", ["x"], ["y"]),
            TensorProto.STRING,
            0,
            b"abc",
            b"abc",
            "tensors of TYPE_STRING",
        ),
        (
            helper.make_node("Neg", ["x"], ["y"]),
            TensorProto.DOUBLE,
            0,
            1e-300,
            -1e-300,
            "tensors of TYPE_FP64",
        ),
        (
            helper.make_node("MurmurHash3", ["x"], ["y"], domain="com.microsoft", positive=1),
            TensorProto.INT32,
            TensorProto.UINT32,
            3,
            None,
            "MurmurHash3",
        ),
    ],
)
def test_model_that_openvino_cannot_execute_is_executed_without(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    node: Any,
    kind: int,
    out: int,
    array: Any,
    expected: Any,
    reason: str,
) -> None:
    folder = write(tmp_path, node, kind, ["n", 1], out=out)
    dtype = object if isinstance(array, bytes) else helper.tensor_dtype_to_np_dtype(kind)
    request = infer({"x": np.array([[array]], dtype)})
    with caplog.at_level(logging.WARNING):
        served = serve(folder)
    found = served(request)[0].arrays["y"].tolist()
    assert found == (
        [[expected]] if expected is not None else serve(folder, False)(request)[0].arrays["y"].tolist()
    )
    (warning,) = [text for text in caplog.messages if "OpenVINO" in text]
    assert warning.startswith("model 'm' is executed without OpenVINO: ") and reason in warning


def test_contradicting_configuration_is_an_error_as_without(tmp_path: Path) -> None:
    text = f"""
        name: "m" backend: "onnxruntime" max_batch_size: 4 {OPENVINO}
        input {{ name: "x" data_type: TYPE_FP32 dims: 15 }}
        output {{ name: "y" data_type: TYPE_FP32 dims: 16 }}
    """
    with pytest.raises(InferError, match="the model expects 2 dimensions"):
        Served(OnnxRuntimeBackend, config(text), matrix(tmp_path))


def test_missing_openvino_is_an_error_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix(tmp_path)
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(InferError) as caught:
        serve(tmp_path)
    assert caught.value.code == ErrorCode.UNSUPPORTED
    assert caught.value.message.startswith(
        "model 'm' asks for the execution accelerator 'openvino', which needs OpenVINO, which is not"
        " installed; install the extra: "
    )
    assert caught.value.message.endswith("[openvino]'")
