"""How PyTorch and ONNX Runtime execute on a GPU, over a stand-in that is memory of this process.

The frameworks, and ONNX Runtime's binding of tensors to addresses, are the real ones.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
onnxruntime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper  # noqa: E402

import backends.cuda.device  # noqa: E402
from app.core.errors import ErrorCode, InferError  # noqa: E402
from app.core.tensors import Tensor  # noqa: E402
from backends.base import Instance, Model  # noqa: E402
from backends.cuda.host_buffers import HostBuffers  # noqa: E402
from backends.onnxruntime import backend as onnxruntime_backend  # noqa: E402
from backends.pytorch import backend as pytorch_backend  # noqa: E402
from tests.unit.backend_harness import Served, config, infer  # noqa: E402
from tests.unit.backends.host_device import HostDevice  # noqa: E402
from tests.unit.backends.onnxruntime import test_backend as test_onnxruntime  # noqa: E402
from tests.unit.backends.pytorch import test_backend as test_torch  # noqa: E402

FP32 = np.dtype(np.float32)


def test_blocks_grow_and_are_used_again() -> None:
    made: list[int] = []

    def allocate(nbytes: int) -> Any:
        made.append(nbytes)
        return np.empty(nbytes, np.uint8)

    buffers = HostBuffers(allocate)
    buffers("A", (2, 3), FP32)[...] = 5
    assert (buffers("A", (3, 2), FP32) == 5).all()
    buffers("A", (1024,), FP32)
    assert buffers("A", (0, 7), FP32).shape == (0, 7)
    buffers("A", (1025,), FP32)
    buffers("B", (1,), FP32)
    assert made == [4096, 8192, 4096]


def test_input_in_its_block_is_not_copied_again() -> None:
    buffers = HostBuffers(lambda nbytes: np.empty(nbytes, np.uint8))
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    held = buffers.copy_in("A", array)
    assert held is not array and (held == array).all()
    assert buffers.copy_in("A", held) is held
    turned = array.T
    assert (buffers.copy_in("A", turned) == turned).all()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instances of kind GPU find the stand-in."""
    monkeypatch.setattr(backends.cuda.device, "CudaDevice", HostDevice)
    monkeypatch.setattr(pytorch_backend, "CudaDevice", HostDevice)
    monkeypatch.setattr(
        onnxruntime_backend, "providers", lambda instance, stream: [("CPUExecutionProvider", {})]
    )
    monkeypatch.setattr(onnxruntime_backend, "_check_gpu", lambda instance, session: None)


def onnx_served(text: str, folder: Path) -> Served:
    served = test_onnxruntime.serve(text, folder, kind="GPU")
    assert served.instance.state.runs is not None
    return served


def test_torch_copies_what_was_merged(gpu: None, tmp_path: Path) -> None:
    served = test_torch.serve(test_torch.INDEXED, test_torch.save(test_torch.AddSub(), tmp_path), kind="GPU")
    arrays = [np.full((rows, 2), rows, np.float32) for rows in (1, 2)]
    calls = served(*(infer({"INPUT__0": array, "INPUT__1": array}) for array in arrays))
    assert [call.arrays["OUTPUT__0"].tolist() for call in calls] == [[[2, 2]], [[4, 4], [4, 4]]]
    device = served.instance.state.gpu
    assert device.waits == 1
    assert device.inputs("INPUT__0", (3, 2), FP32)[:, 0].tolist() == [1, 2, 2]


def test_torch_results_outlive_the_next_execution(gpu: None, tmp_path: Path) -> None:
    folder = test_torch.save(test_torch.Keeps(), tmp_path)
    served = test_torch.serve(test_torch.one("TYPE_FP32"), folder, kind="GPU")
    (first,) = served(infer({"INPUT__0": np.full((1, 2), 1, np.float32)}))
    (second,) = served(infer({"INPUT__0": np.full((1, 2), 2, np.float32)}))
    assert (first.arrays["OUTPUT__0"] == 1).all()
    assert (second.arrays["OUTPUT__0"] == 2).all()


@pytest.mark.parametrize(
    ("kind", "datatype", "dtype"),
    [("TYPE_BF16", "BF16", np.uint16), ("TYPE_BOOL", "BOOL", np.bool_), ("TYPE_INT64", "INT64", np.int64)],
)
def test_data_types_of_bound_tensors(gpu: None, kind: str, datatype: str, dtype: Any, tmp_path: Path) -> None:
    array = np.array([[0, 1], [1, 0], [1, 1]], dtype)
    tensor = Tensor("I", datatype, array.shape, array.tobytes())
    folder = test_torch.save(test_torch.Same(), tmp_path / "torch")
    served = test_torch.serve(test_torch.one(kind), folder, kind="GPU")
    (call,) = served(infer({"INPUT__0": Tensor("INPUT__0", datatype, array.shape, array.tobytes())}))
    assert call.arrays["OUTPUT__0"].tobytes() == array.tobytes()

    number = {"BF16": TensorProto.BFLOAT16, "BOOL": TensorProto.BOOL, "INT64": TensorProto.INT64}[datatype]
    folder = test_onnxruntime.identity(tmp_path / "onnx", number, ("batch", 2))
    served = onnx_served(test_onnxruntime.one(kind, "dims: 2"), folder)
    (call,) = served(infer({"I": tensor}))
    assert call.arrays["O"].tobytes() == array.tobytes()


def test_onnx_tensors_are_bound(gpu: None, tmp_path: Path) -> None:
    served = onnx_served(test_onnxruntime.ADD_SUB, test_onnxruntime.add_sub(tmp_path))
    for rows in (1, 3, 2):
        arrays = [np.full((rows, 16), n, np.int32) for n in (1, 2)]
        calls = served(*(infer({"INPUT0": a, "INPUT1": a}) for a in arrays))
        assert [call.arrays["OUTPUT0"][0, 0] for call in calls] == [2, 4]
        assert all(not call.arrays["OUTPUT1"].any() for call in calls)
    assert served.instance.state.runs.device.waits == 3


def test_onnx_outputs_that_are_not_requested_are_not_bound(gpu: None, tmp_path: Path) -> None:
    served = onnx_served(test_onnxruntime.ADD_SUB, test_onnxruntime.add_sub(tmp_path))
    array = np.full((1, 16), 3, np.int32)
    (call,) = served(infer({"INPUT0": array, "INPUT1": array}, ["OUTPUT1"]))
    assert list(call.arrays) == ["OUTPUT1"]
    (call,) = served(infer({"INPUT0": array, "INPUT1": array}))
    assert (call.arrays["OUTPUT0"] == 6).all()


def test_onnx_results_outlive_the_next_execution(gpu: None, tmp_path: Path) -> None:
    served = onnx_served(test_onnxruntime.one("TYPE_FP32", "dims: 16"), test_onnxruntime.identity(tmp_path))
    calls = [served(infer({"I": np.full((1, 16), n, np.float32)}))[0] for n in (1, 2)]
    assert [call.arrays["O"][0, 0] for call in calls] == [1, 2]


GRAPHS = "optimization {{ cuda {{ graphs: true {} }} }}"


def test_onnx_graphs_write_to_memory_that_stays(gpu: None, tmp_path: Path) -> None:
    spec = "graph_spec { batch_size: 2 } graph_spec { batch_size: 4 graph_lower_bound { batch_size: 3 } }"
    text = test_onnxruntime.one("TYPE_FP32", "dims: 16", 8, GRAPHS.format(spec))
    served = onnx_served(text, test_onnxruntime.identity(tmp_path))
    runs = served.instance.state.runs
    assert len(runs._graphs) == 2
    for rows in (2, 3, 4, 1, 5, 2):
        array = np.arange(16 * rows, dtype=np.float32).reshape(rows, 16) + rows
        (call,) = served(infer({"I": array}))
        assert (call.arrays["O"] == array).all()


def test_onnx_graphs_need_whole_shapes(gpu: None, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = test_onnxruntime.one("TYPE_FP32", "dims: -1", 8, GRAPHS.format(""))
    served = onnx_served(text, test_onnxruntime.identity(tmp_path, shape=("batch", "width")))
    assert "unable to record CUDA graph for x: its graph_spec leaves dimensions" in caplog.text
    assert served(infer({"I": np.ones((1, 4), np.float32)}))[0].arrays["O"].all()


def test_onnx_scalars_of_a_batch(gpu: None, tmp_path: Path) -> None:
    folder = test_onnxruntime.save(
        tmp_path,
        [helper.make_node("ReduceSum", ["I"], ["O"], keepdims=0)],
        [("I", TensorProto.FLOAT, ("n",))],
        [("O", TensorProto.FLOAT, ())],
    )
    text = """
        name: "x" backend: "onnxruntime" max_batch_size: 0
        input { name: "I" data_type: TYPE_FP32 dims: -1 } output { name: "O" data_type: TYPE_FP32 dims: 1 }
    """
    (call,) = onnx_served(text, folder)(infer({"I": np.arange(4, dtype=np.float32)}))
    assert call.arrays["O"].tolist() == [6]


def test_onnx_strings_stay_on_the_host(gpu: None, tmp_path: Path) -> None:
    folder = test_onnxruntime.identity(tmp_path, TensorProto.STRING, ("batch", 1))
    served = test_onnxruntime.serve(test_onnxruntime.one("TYPE_STRING", "dims: 1"), folder, kind="GPU")
    assert served.instance.state.runs is None
    assert served(infer({"I": np.array([[b"word"]], object)}))[0].arrays["O"].tolist() == [[b"word"]]


def test_a_session_that_fell_back_to_the_cpu_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends.cuda.device, "CudaDevice", HostDevice)
    monkeypatch.setattr(
        onnxruntime_backend, "providers", lambda instance, stream: [("CPUExecutionProvider", {})]
    )
    with pytest.raises(InferError, match="ONNX Runtime cannot use CUDA on this machine") as caught:
        test_onnxruntime.serve(test_onnxruntime.ADD_SUB, test_onnxruntime.add_sub(tmp_path), kind="GPU")
    assert caught.value.code is ErrorCode.UNSUPPORTED


def test_options_of_the_cuda_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    from backends.onnxruntime.session import providers

    available = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: available)
    found = {}
    for text, stream in (("", 0), ("", 7), ("optimization { cuda { graphs: true } }", 7)):
        model = Model(config(f'name: "x" {text}'), 1, Path())
        found[text, stream] = providers(Instance(model, "x_0_0", "GPU", 1), stream)[0][1]
    assert list(found.values()) == [
        {"device_id": "1"},
        {"device_id": "1", "user_compute_stream": "7"},
        {"device_id": "1", "user_compute_stream": "7", "enable_cuda_graph": "1"},
    ]
