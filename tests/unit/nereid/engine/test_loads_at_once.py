"""Eight models of each framework present, loaded at once in one process."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nereid.engine.engine import Engine
from tests.unit.nereid.engine.repositories import DOUBLE, source

Write = Callable[[Path, int], str]
MODELS = 8
ROW = np.array([[1, 2]], np.float32)
IO = """
max_batch_size: 8
input { name: "INPUT__0" data_type: TYPE_FP32 dims: 2 }
output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: 2 }
"""
FOREST_IO = IO.replace("INPUT", "input").replace(
    '"OUTPUT__0" data_type: TYPE_FP32 dims: 2', '"output__0" data_type: TYPE_FP32 dims: 1'
)
EAGER = """
import torch

class Add(torch.nn.Module):
    def forward(self, rows):
        return rows + {}
"""


def module(number: int) -> Any:
    """Return a module of PyTorch that adds the number."""
    import torch

    class Add(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("number", torch.tensor(float(number)))

        def forward(self, rows: Any) -> Any:
            return rows + self.number

    return Add().eval()


def export(number: int) -> Any:
    import torch

    rows = {0: torch.export.Dim("rows", min=1, max=8)}
    return torch.export.export(module(number), (torch.ones(2, 2),), dynamic_shapes=(rows,))


def exported(folder: Path, number: int) -> str:
    import torch

    torch.export.save(export(number), folder / "model.pt2")
    return 'backend: "pytorch"'


def scripted(folder: Path, number: int) -> str:
    import torch

    torch.jit.trace(module(number), torch.ones(1, 2)).save(str(folder / "model.pt"))  # type: ignore[no-untyped-call]
    return 'backend: "pytorch"'


def eager(folder: Path, number: int) -> str:
    (folder / "model.py").write_text(EAGER.format(number))
    return 'backend: "pytorch" runtime: "model.py"'


def compiled(folder: Path, number: int) -> str:
    import torch

    first = folder.parents[1] / "add0" / "1" / "model.pt2"
    if number:  # compiling takes fifteen seconds
        shutil.copyfile(first, folder / "model.pt2")
    else:
        torch._inductor.aoti_compile_and_package(export(0), package_path=str(first))
    return 'platform: "torch_aoti"'


def onnx_bytes(number: int) -> bytes:
    from onnx import TensorProto, helper

    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in ("INPUT__0", "OUTPUT__0")
    ]
    constant = helper.make_tensor("number", TensorProto.FLOAT, [], [float(number)])
    node = helper.make_node("Add", ["INPUT__0", "number"], ["OUTPUT__0"])
    graph = helper.make_graph([node], "g", tensors[:1], tensors[1:], [constant])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def onnx(folder: Path, number: int) -> str:
    (folder / "model.onnx").write_bytes(onnx_bytes(number))
    return 'backend: "onnxruntime"'


def openvino(folder: Path, number: int) -> str:
    (folder / "model.onnx").write_bytes(onnx_bytes(number))
    return 'backend: "openvino" default_model_filename: "model.onnx"'


def python(folder: Path, number: int) -> str:
    text = source(DOUBLE.replace("* 2", f"+ {number}"))
    (folder / "model.py").write_text(text.replace("'IN'", "'INPUT__0'").replace("'OUT'", "'OUTPUT__0'"))
    return 'backend: "python"'


def saved_model(folder: Path, number: int) -> str:
    import tensorflow as tf

    made = tf.Module()
    made.number = tf.Variable(float(number))
    spec = tf.TensorSpec((None, 2), tf.float32, name="INPUT__0")
    call = tf.function(lambda rows: {"OUTPUT__0": rows + made.number}, input_signature=[spec])
    signatures = {"serving_default": call.get_concrete_function()}
    tf.saved_model.save(made, str(folder / "model.savedmodel"), signatures=signatures)
    return 'backend: "tensorflow"'


def forest(folder: Path, number: int) -> str:
    import lightgbm

    rows = lightgbm.Dataset(np.repeat(ROW, 40, axis=0), np.full(40, float(number)))
    lightgbm.train({"verbose": -1, "objective": "regression", "num_threads": 1}, rows, 1).save_model(
        folder / "model.txt"
    )
    return 'backend: "fil"'


def expected(write: Write, number: int) -> Any:
    """Return the answer to `ROW` by a model."""
    if write is forest:
        return [[number]]
    return (ROW + (0 if write is compiled else number)).tolist()


def slow(write: Write) -> Any:
    return pytest.param(write, marks=[pytest.mark.slow, pytest.mark.timeout(600)])


MODULES: dict[Write, tuple[str, ...]] = {
    exported: ("torch",),
    scripted: ("torch",),
    eager: ("torch",),
    compiled: ("torch",),
    onnx: ("onnx", "onnxruntime"),
    openvino: ("onnx", "openvino"),
    forest: ("lightgbm", "treelite"),
    saved_model: ("tensorflow",),
    python: (),
}
COMPILING = (eager, compiled)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.mark.parametrize(
    "write", [slow(each) if each in COMPILING else each for each in MODULES], ids=lambda each: each.__name__
)
def test_models_of_one_framework_load_at_once(tmp_path: Path, write: Write) -> None:
    for module in MODULES[write]:
        pytest.importorskip(module)
    for number in range(MODELS):
        folder = tmp_path / f"add{number}" / "1"
        folder.mkdir(parents=True)
        tensors = FOREST_IO if write is forest else IO
        (folder.parent / "config.pbtxt").write_text(write(folder, number) + tensors)
    given = "input__0" if write is forest else "INPUT__0"
    with Engine.open(model_repository=[str(tmp_path)], model_load_thread_count=MODELS) as engine:
        assert [(name, reason) for name, _, state, reason in engine.index() if state != "READY"] == []
        for number in range(MODELS):
            (answer,) = engine.infer(f"add{number}", {given: ROW}).values()
            assert answer.tolist() == expected(write, number)
