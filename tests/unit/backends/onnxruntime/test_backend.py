"""ONNX models, built here, through the onnxruntime backend."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnxruntime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

from google.protobuf import text_format  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402

from app.core.errors import ErrorCode, InferError  # noqa: E402
from app.core.installed.installation import install_command  # noqa: E402
from app.core.system.cpus import available_cpus  # noqa: E402
from app.core.tensors import Tensor  # noqa: E402
from backends.base import Instance, Model  # noqa: E402
from backends.cpus import threads_per_instance  # noqa: E402
from backends.onnxruntime.backend import OnnxRuntimeBackend  # noqa: E402
from backends.onnxruntime.session import providers, session_options  # noqa: E402
from tests.unit.backend_harness import Served, config, infer  # noqa: E402

FLOAT = TensorProto.FLOAT
HAS_CUDA = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
IO = tuple[str, int, Sequence[Any]]


def save(
    folder: Path,
    nodes: list[Any],
    inputs: Sequence[IO],
    outputs: Sequence[IO],
    name: str = "model.onnx",
    opset: int = 17,
) -> Path:
    """Write an ONNX model as version 1 of a model in `folder`."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(*io) for io in inputs],
        [helper.make_tensor_value_info(*io) for io in outputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=opset // 2)
    path = folder / "1" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return folder


def identity(folder: Path, kind: int = FLOAT, shape: Sequence[Any] = ("batch", 16), **options: Any) -> Path:
    return save(
        folder,
        [helper.make_node("Identity", ["I"], ["O"])],
        [("I", kind, shape)],
        [("O", kind, shape)],
        **options,
    )


def add_sub(folder: Path, shape: Sequence[Any] = ("batch", 16)) -> Path:
    nodes = [
        helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
        helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
    ]
    inputs = [(name, TensorProto.INT32, shape) for name in ("INPUT0", "INPUT1")]
    return save(folder, nodes, inputs, [(name, TensorProto.INT32, shape) for name in ("OUTPUT0", "OUTPUT1")])


ADD_SUB = """
    name: "x" backend: "onnxruntime" max_batch_size: 8
    input { name: "INPUT0" data_type: TYPE_INT32 dims: 16 }
    input { name: "INPUT1" data_type: TYPE_INT32 dims: 16 }
    output { name: "OUTPUT0" data_type: TYPE_INT32 dims: 16 }
    output { name: "OUTPUT1" data_type: TYPE_INT32 dims: 16 }
"""


def one(kind: str, dims: str, batch: int = 8, extra: str = "") -> str:
    return f"""
        name: "x" backend: "onnxruntime" max_batch_size: {batch}
        input {{ name: "I" data_type: {kind} {dims} }} output {{ name: "O" data_type: {kind} {dims} }} {extra}
    """


def serve(text: str, folder: Path, **options: Any) -> Served:
    return Served(OnnxRuntimeBackend, config(text), folder, **options)


def completed(text: str, folder: Path, **settings: str) -> str:
    model = Model(config(text), 1, folder, settings)
    return str(text_format.MessageToString(OnnxRuntimeBackend.auto_complete(model), as_one_line=True))


def refusal(text: str, folder: Path) -> str:
    with pytest.raises(InferError) as caught:
        serve(text, folder)
    assert caught.value.code in (ErrorCode.INVALID_ARG, ErrorCode.UNAVAILABLE)
    return caught.value.message


def test_sum_and_difference_of_a_batch(tmp_path: Path) -> None:
    served = serve(ADD_SUB, add_sub(tmp_path))
    arrays = [np.full((1, 16), n, np.int32) for n in (1, 2, 3)]
    calls = served(*(infer({"INPUT0": a, "INPUT1": a}) for a in arrays))
    assert [call.arrays["OUTPUT0"][0, 0] for call in calls] == [2, 4, 6]
    assert all(not call.arrays["OUTPUT1"].any() for call in calls)
    served.close()


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("BOOL", np.bool_),
        ("UINT8", np.uint8),
        ("UINT16", np.uint16),
        ("UINT32", np.uint32),
        ("UINT64", np.uint64),
        ("INT8", np.int8),
        ("INT16", np.int16),
        ("INT32", np.int32),
        ("INT64", np.int64),
        ("FP16", np.float16),
        ("FP32", np.float32),
        ("FP64", np.float64),
        ("BF16", np.uint16),
    ],
)
def test_every_numeric_type(kind: str, dtype: Any, tmp_path: Path) -> None:
    proto = {"FP16": "FLOAT16", "FP32": "FLOAT", "FP64": "DOUBLE", "BF16": "BFLOAT16"}.get(kind, kind)
    served = serve(one(f"TYPE_{kind}", "dims: 16"), identity(tmp_path, TensorProto.DataType.Value(proto)))
    arrays = [np.arange(n, n + 16).astype(dtype).reshape(1, 16) for n in (0, 1)]
    calls = served(*(infer({"I": Tensor.from_array("I", array, kind)}) for array in arrays))
    for call, array in zip(calls, arrays, strict=True):
        assert np.array_equal(call.arrays["O"], array)
        assert call.responses[0].outputs[0].datatype == kind


def test_string_tensors_round_trip(tmp_path: Path) -> None:
    served = serve(one("TYPE_STRING", "dims: 2"), identity(tmp_path, TensorProto.STRING, ("b", 2)))
    calls = served(
        *(infer({"I": np.array([[text, b""]], dtype=object)}) for text in (b"a", "é".encode(), b"\xff"))
    )
    assert calls[0].arrays["O"].tolist() == [[b"a", b""]]
    assert calls[1].arrays["O"].tolist() == [["é".encode(), b""]]
    assert "not valid UTF-8" in calls[2].error


def test_scalars_without_batching(tmp_path: Path) -> None:
    served = serve(one("TYPE_FP32", "dims: 1", 0), identity(tmp_path, shape=()))
    (call,) = served(infer({"I": np.array([3.5], np.float32)}))
    assert call.arrays["O"].tolist() == [3.5]


def test_one_value_a_row(tmp_path: Path) -> None:
    served = serve(one("TYPE_FP32", "dims: 1 reshape { }"), identity(tmp_path, shape=("b",)))
    (call,) = served(infer({"I": np.array([[1.0], [2.0]], np.float32)}))
    assert call.arrays["O"].tolist() == [[1.0], [2.0]]


def test_model_directory(tmp_path: Path) -> None:
    (tmp_path / "1" / "model.onnx").mkdir(parents=True)
    identity(tmp_path, name="model.onnx/model.onnx")
    serve(one("TYPE_FP32", "dims: 16"), tmp_path)


def test_failure_is_one_plain_line(tmp_path: Path) -> None:
    nodes = [helper.make_node("Reshape", ["I", "S"], ["O"])]
    inputs = [("I", FLOAT, ("b", "n")), ("S", TensorProto.INT64, ("b",))]
    ragged = "dims: 1 reshape { }"
    text = one("TYPE_FP32", "dims: -1").replace(
        "output", f'input {{ name: "S" data_type: TYPE_INT64 {ragged} }} output'
    )
    served = serve(text, save(tmp_path, nodes, inputs, [("O", FLOAT, ("b", "n"))]))
    (call,) = served(infer({"I": np.zeros((1, 3), np.float32), "S": np.array([[7]])}))
    assert call.error.startswith("onnx runtime error 1: Non-zero status code returned while running Reshape")
    assert "\n" not in call.error


def test_outputs_keep_the_shape_that_the_model_returns(tmp_path: Path) -> None:
    nodes = [helper.make_node("Concat", ["I", "I"], ["O"], axis=1)]
    shape = ("b", "n")
    folder = save(tmp_path, nodes, [("I", FLOAT, shape)], [("O", FLOAT, shape)])
    path = folder / "1" / "model.onnx"
    model = onnx.load(path)
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 3
    path.write_bytes(model.SerializeToString())
    text = (
        one("TYPE_FP32", "dims: -1").replace("dims: -1 } ", "dims: 3 } ", 2).replace("dims: 3", "dims: -1", 1)
    )
    (call,) = serve(text, folder)(infer({"I": np.ones((1, 4), np.float32)}))
    assert call.arrays["O"].shape == (1, 8)


def test_io_of_other_kinds(tmp_path: Path) -> None:
    nodes = [helper.make_node("SequenceConstruct", ["I"], ["O"])]
    value = helper.make_tensor_sequence_value_info("O", FLOAT, None)
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("I", FLOAT, ["b"])], [value])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(InferError) as caught:
        completed('name: "x"', tmp_path)
    assert caught.value.code is ErrorCode.UNSUPPORTED
    assert caught.value.message == (
        "Unsupported ONNX Type 'ONNX_TYPE_SEQUENCE' for I/O 'O', expected 'ONNX_TYPE_TENSOR'."
    )


def test_auto_complete_of_a_model_that_batches(tmp_path: Path) -> None:
    assert completed('name: "x"', identity(tmp_path)) == (
        'name: "x" max_batch_size: 4'
        ' input { name: "I" data_type: TYPE_FP32 dims: 16 } output { name: "O" data_type:'
        " TYPE_FP32 dims: 16 }"
        " dynamic_batching { }"
    )


def test_auto_complete_keeps_what_is_set(tmp_path: Path) -> None:
    folder = identity(tmp_path)
    assert "max_batch_size: 7" in completed('name: "x" max_batch_size: 7', folder)
    assert "max_batch_size: 9" in completed('name: "x"', folder, **{"default-max-batch-size": "9"})
    assert "dynamic_batching" not in completed('name: "x"', folder, **{"default-max-batch-size": "1"})
    assert "dynamic_batching" not in completed('name: "x" sequence_batching { direct { } }', folder)
    full = one("TYPE_FP32", "dims: 5", 0)
    assert completed(full, folder) == text_format.MessageToString(config(full), as_one_line=True)


def test_auto_complete_of_a_model_that_does_not_batch(tmp_path: Path) -> None:
    folder = identity(tmp_path, shape=(1, 256))
    assert "dims: 1 dims: 256" in completed('name: "x"', folder)
    with pytest.raises(InferError) as caught:
        completed('name: "x" max_batch_size: 4', folder)
    assert caught.value.message == (
        "autofill failed for model 'x': model does not support batching while non-zero"
        " max_batch_size is specified"
    )


def test_auto_complete_of_scalars(tmp_path: Path) -> None:
    assert completed('name: "x"', identity(tmp_path / "a", shape=())).count("dims: 1 }") == 2
    assert completed('name: "x"', identity(tmp_path / "b", shape=("b",))).count("dims: 1 reshape { }") == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            ADD_SUB.replace("dims: 16", "dims: [16, 1]"),
            "model 'x', tensor 'INPUT0': the model expects 2 dimensions (shape [-1,16]) but the"
            " model configuration"
            " specifies 3 dimensions (an initial batch dimension because max_batch_size > 0"
            " followed by the explicit"
            " tensor shape, making complete shape [-1,16,1])",
        ),
        (
            ADD_SUB.replace("max_batch_size: 8", "").replace("dims: 16", "dims: [1, 2, 3]"),
            "model 'x', tensor 'INPUT0': the model expects 2 dimensions (shape [-1,16]) but the"
            " model configuration"
            " specifies 3 dimensions (shape [1,2,3])",
        ),
        (
            ADD_SUB.replace("dims: 16", "dims: -1", 1),
            "model 'x', tensor 'INPUT0': the model expects 2 dimensions (shape [-1,16]) but the"
            " model configuration"
            " specifies 2 dimensions (an initial batch dimension because max_batch_size > 0"
            " followed by the explicit"
            " tensor shape, making complete shape [-1,-1])",
        ),
        (
            ADD_SUB.replace('input { name: "INPUT1" data_type: TYPE_INT32 dims: 16 }', ""),
            "unable to load model 'x', configuration expects 1 inputs, model provides 2",
        ),
        (
            ADD_SUB.replace('"INPUT1"', '"INPUT_UNKNOWN"'),
            "unexpected inference input 'INPUT_UNKNOWN', allowed inputs are: INPUT0, INPUT1",
        ),
        (
            ADD_SUB.replace('"OUTPUT1"', '"OUTPUT_UNKNOWN"'),
            "unexpected inference output 'OUTPUT_UNKNOWN', allowed outputs are: OUTPUT0, OUTPUT1",
        ),
        (
            ADD_SUB.replace("TYPE_INT32", "TYPE_FP32", 1),
            "unable to load model 'x', configuration expects datatype TYPE_FP32 for input"
            " 'INPUT0', model provides"
            " TYPE_INT32",
        ),
        (
            ADD_SUB.replace("dims: 16 }", "dims: 16 optional: true }", 1),
            "unable to load model 'x', configuration expects 1 inputs, model provides 2",
        ),
        (
            ADD_SUB
            + 'sequence_batching { control_input { name: "START" control { int32_false_true: [0, 1] } } }',
            "configuration specified sequence control 'START', but model does not provide that input",
        ),
    ],
)
def test_mismatches_at_load(text: str, message: str, tmp_path: Path) -> None:
    folder = add_sub(tmp_path)
    with pytest.raises(InferError) as caught:
        serve(text, folder)
    assert caught.value.message == message


def test_batching_needs_a_variable_first_dimension(tmp_path: Path) -> None:
    assert refusal(one("TYPE_FP32", "dims: 16"), identity(tmp_path, shape=(1, 16))) == (
        "model 'x', tensor 'I': for the model to support batching the shape should have at"
        " least 1 dimension and"
        " the first dimension must be -1; but shape expected by the model is [1,16]"
    )


def test_missing_and_escaping_files(tmp_path: Path) -> None:
    assert refusal(one("TYPE_FP32", "dims: 16"), tmp_path) == (
        f"unable to find '{tmp_path}/1/model.onnx' for model instance 'x'"
    )
    for name in ("../../secret.onnx", "/etc/passwd", "..", "a/../../b"):
        text = one("TYPE_FP32", "dims: 16", 8, f'default_model_filename: "{name}"')
        assert "escapes the directory of model 'x'" in refusal(text, identity(tmp_path))


def test_truncated_model_is_refused(tmp_path: Path) -> None:
    path = identity(tmp_path) / "1" / "model.onnx"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(InferError, match="onnx runtime error"):
        serve(one("TYPE_FP32", "dims: 16"), tmp_path)


def test_parameters_reach_the_session(tmp_path: Path) -> None:
    extra = """
        optimization { graph { level: 1 } }
        parameters { key: "intra_op_thread_count" value { string_value: "3" } }
        parameters { key: "inter_op_thread_count" value { string_value: "2" } }
        parameters { key: "execution_mode" value { string_value: "1" } }
        parameters { key: "enable_mem_arena" value { string_value: "0" } }
        parameters { key: "enable_mem_pattern" value { string_value: "false" } }
        parameters { key: "memory.enable_memory_arena_shrinkage" value { string_value: "cpu:0" } }
        parameters { key: "session.use_device_allocator_for_initializers" value { string_value: "1" } }
    """
    text = one("TYPE_FP32", "dims: 16", 8, extra)
    options = session_options(Model(config(text), 1, tmp_path))
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 2)
    assert "PARALLEL" in str(options.execution_mode)
    assert "EXTENDED" in str(options.graph_optimization_level)
    assert not options.enable_cpu_mem_arena
    assert not options.enable_mem_pattern
    assert options.get_session_config_entry("session.use_device_allocator_for_initializers") == "1"
    served = serve(text.replace("enable_mem_arena", "unused"), identity(tmp_path))
    assert served(infer({"I": np.ones((1, 16), np.float32)}))[0].arrays["O"].all()


@pytest.mark.parametrize(
    ("key", "value"), [("execution_mode", "2"), ("intra_op_thread_count", "x"), ("enable_mem_arena", "y")]
)
def test_bad_parameters(key: str, value: str, tmp_path: Path) -> None:
    text = one(
        "TYPE_FP32", "dims: 16", 8, f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
    )
    assert value in refusal(text, identity(tmp_path))


@pytest.mark.parametrize(("shared", "sessions"), [("true", 1), ("false", 2)])
def test_instances_may_share_a_session(shared: str, sessions: int, tmp_path: Path) -> None:
    extra = f'parameters {{ key: "share_session_between_instances" value {{ string_value: "{shared}" }} }}'
    served = serve(one("TYPE_FP32", "dims: 16", 8, extra), identity(tmp_path))
    second = Instance(served.model, "x_0_1")
    served.backend.instance_initialize(second)
    assert len({id(instance.state.session) for instance in (served.instance, second)}) == sessions


def test_gpu_without_a_gpu_and_unknown_accelerators(tmp_path: Path) -> None:
    model = Model(config(one("TYPE_FP32", "dims: 16")), 1, tmp_path)
    if not HAS_CUDA:
        with pytest.raises(InferError, match=re.escape(install_command("gpu"))):
            providers(Instance(model, "x_0_0", "GPU"))
    accelerator = 'optimization { execution_accelerators { cpu_execution_accelerator { name: "warp" } } }'
    model = Model(config(one("TYPE_FP32", "dims: 16", 8, accelerator)), 1, tmp_path)
    with pytest.raises(InferError, match="unknown Execution Accelerator 'warp' is requested"):
        providers(Instance(model, "x_0_0"))


def test_threads_are_shared_among_instances(tmp_path: Path) -> None:
    groups = config("instance_group { count: 3 kind: KIND_CPU } instance_group { count: 1 kind: KIND_GPU }")
    assert [threads_per_instance(groups, cpus) for cpus in (1, 2, 6, 16)] == [1, 1, 2, 5]
    quota = tmp_path / "cpu.max"
    quota.write_text("100000 100000\n")
    assert available_cpus(quota) == 1
    quota.write_text("max 100000\n")
    assert available_cpus(quota) >= 1
