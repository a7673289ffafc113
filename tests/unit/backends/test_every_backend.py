"""What holds for every backend: the same model, OUTPUT0 = INPUT0, in each framework present."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.core.tensors import Tensor
from backends.registry.loading import find_backend
from backends.registry.place import BackendPlace
from tests.unit.backend_harness import Served, config, infer

CONFIG = """
    name: "m" backend: "{}" max_batch_size: 8
    input {{ name: "INPUT0" data_type: TYPE_FP32 dims: -1 }}
    output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: -1 }}
"""
MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "INPUT0") for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", t.as_numpy())]) for t in tensors]
"""


def write_onnx(folder: Path) -> None:
    from onnx import TensorProto, helper

    tensors = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["b", "n"]) for n in ("INPUT0", "OUTPUT0")]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])], "g", tensors[:1], tensors[1:]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "model.onnx").write_bytes(model.SerializeToString())


def write_openvino(folder: Path) -> None:
    import openvino as ov
    from openvino import opset13 as op

    value = op.parameter([-1, -1], np.float32, name="INPUT0")
    value.output(0).get_tensor().set_names({"INPUT0"})
    same = op.abs(value)
    same.output(0).get_tensor().set_names({"OUTPUT0"})
    ov.save_model(ov.Model([same], [value], "m"), folder / "model.xml")


def write_torch(folder: Path) -> None:
    import torch

    torch.jit.trace(  # type: ignore[no-untyped-call]
        torch.nn.Identity(), torch.ones(1, 2)
    ).save(str(folder / "model.pt"))


def write_python(folder: Path) -> None:
    (folder / "model.py").write_text(MODEL)


def write_nothing(folder: Path) -> None:
    pass


BACKENDS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "identity": ("numpy", write_nothing),
    "python": ("numpy", write_python),
    "onnxruntime": ("onnxruntime", write_onnx),
    "openvino": ("openvino", write_openvino),
    "pytorch": ("torch", write_torch),
}

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(params=BACKENDS)
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    module, write = BACKENDS[request.param]
    if find_spec(module) is None or (request.param == "onnxruntime" and find_spec("onnx") is None):
        pytest.skip(f"{module} is not installed")
    (tmp_path / "1").mkdir()
    write(tmp_path / "1")
    served = Served(find_backend(BackendPlace(request.param)), config(CONFIG.format(request.param)), tmp_path)
    yield served
    served.close()


def row(*values: float) -> Any:
    return np.array([values], np.float32)


def test_one_request_is_answered(served: Served) -> None:
    (call,) = served(infer({"INPUT0": row(1, 2)}, id="7"))
    assert call.arrays["OUTPUT0"].tolist() == [[1, 2]]
    response = call.responses[0]
    assert (response.id, response.model_name, response.model_version, response.final) == ("7", "m", "1", True)
    assert (response.outputs[0].datatype, response.outputs[0].shape) == ("FP32", (1, 2))


def test_a_batch_in_order(served: Served) -> None:
    sizes = [1, 3, 2]
    calls = served(*(infer({"INPUT0": np.full((n, 4), n, np.float32)}) for n in sizes))
    assert [call.arrays["OUTPUT0"].shape for call in calls] == [(n, 4) for n in sizes]
    assert [call.arrays["OUTPUT0"].mean() for call in calls] == sizes


def test_a_large_tensor(served: Served) -> None:
    array = np.arange(300_000, dtype=np.float32).reshape(1, -1)
    (call,) = served(infer({"INPUT0": array}))
    assert np.array_equal(call.arrays["OUTPUT0"], array)


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
def test_every_kind_of_buffer(make: Callable[[bytes], Any], served: Served) -> None:
    (call,) = served(infer({"INPUT0": Tensor("INPUT0", "FP32", (1, 2), make(row(1, 2).tobytes()))}))
    assert call.arrays["OUTPUT0"].tolist() == [[1, 2]]


def test_requested_output(served: Served) -> None:
    assert list(served(infer({"INPUT0": row(1)}, ["OUTPUT0"]))[0].arrays) == ["OUTPUT0"]


def test_responses_stay_as_they_were(served: Served) -> None:
    (first,) = served(infer({"INPUT0": row(1, 2)}))
    for value in range(5):
        served(infer({"INPUT0": row(value, value)}))
    assert first.arrays["OUTPUT0"].tolist() == [[1, 2]]


def test_loaded_instance_is_ready(served: Served) -> None:
    assert served.backend.instance_ready(served.instance)
