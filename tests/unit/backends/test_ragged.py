"""Ragged batches: the tensors made of them, and real ONNX models that take them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import InferError
from app.core.tensors import Tensor
from backends.array_backend import ArrayBackend
from backends.base import Instance
from backends.ragged import Ragged, scattered
from tests.unit.backend_harness import Call, Served, config, infer

SHAPES = [(1, 2, 3), (2, 1, 4)]  # 6 and 8 elements, in 1 and 2 items

KINDS: list[tuple[str, Any]] = [
    ("BATCH_ELEMENT_COUNT", [6, 8]),
    ("BATCH_ACCUMULATED_ELEMENT_COUNT", [6, 14]),
    ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", [0, 6, 14]),
    ("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", [0] * 8),
    ("BATCH_ITEM_SHAPE", [[2, 3], [1, 4], [1, 4]]),
    ("BATCH_ITEM_SHAPE_FLATTEN", [2, 3, 1, 4, 1, 4]),
]


@pytest.mark.parametrize("datatype", ["INT32", "FP32"])
@pytest.mark.parametrize(("kind", "expected"), KINDS)
def test_every_kind_of_batch_input(kind: str, expected: Any, datatype: str) -> None:
    text = f"""
        input {{ name: "R" data_type: TYPE_INT8 dims: [ -1, -1 ] allow_ragged_batch: true }}
        batch_input {{ kind: {kind} target_name: [ "X", "Y" ] data_type: TYPE_{datatype} source_input: "R" }}
    """
    ragged = Ragged.from_config(config(text))
    assert ragged is not None and ragged.inputs == {"R"}
    made = ragged.batch_inputs({"R": SHAPES})
    assert list(made) == ["X", "Y"]
    for array in made.values():
        np.testing.assert_array_equal(array, expected)
        assert array.dtype == {"INT32": np.int32, "FP32": np.float32}[datatype]
    with pytest.raises(InferError, match="input 'R', which is missing"):
        ragged.batch_inputs({})


def test_every_kind_of_triton_is_implemented() -> None:
    assert {kind for kind, _ in KINDS} == set(mc.BatchInput.Kind.keys())
    assert list(mc.BatchOutput.Kind.keys()) == ["BATCH_SCATTER_WITH_INPUT_SHAPE"]


def test_config_without_ragged_inputs() -> None:
    assert Ragged.from_config(config('input { name: "A" dims: 1 }')) is None


def test_shape_of_a_scattered_part() -> None:
    assert scattered((-1, -1, 4), (2, 3)) == (2, 3, 4)
    with pytest.raises(InferError, match="more variable dimensions"):
        scattered((-1, -1, -1), (2, 3))


class Doubling(ArrayBackend):
    """Doubles what it is given, and remembers it."""

    fed: list[Mapping[str, np.ndarray[Any, Any]]] = []

    def load(self, instance: Instance) -> None:
        self.fed.clear()

    def execute(
        self, loaded: Any, inputs: Mapping[str, np.ndarray[Any, Any]], outputs: Sequence[str]
    ) -> dict[str, np.ndarray[Any, Any]]:
        self.fed.append(dict(inputs))
        return {"O": inputs["R"] * 2}


SCATTER = """
    name: "x" backend: "doubling" max_batch_size: 8
    input { name: "R" data_type: TYPE_INT32 dims: -1 allow_ragged_batch: true }
    output { name: "O" data_type: TYPE_INT32 dims: -1 }
    batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "O" source_input: "R" }
"""


def ints(*rows: Sequence[int]) -> np.ndarray[Any, Any]:
    return np.array(rows, np.int32)


def test_output_is_scattered_by_the_shapes_of_the_input() -> None:
    arrays = [ints([1, 2]), ints([3, 4, 5], [6, 7, 8]), ints([9])]
    calls = Served(Doubling, config(SCATTER))(*(infer({"R": array}) for array in arrays))
    for call, array in zip(calls, arrays, strict=True):
        np.testing.assert_array_equal(call.arrays["O"], array * 2)
    (fed,) = Doubling.fed
    assert fed["R"].tolist() == list(range(1, 10))


def test_a_lone_request_is_flat_too() -> None:
    (call,) = Served(Doubling, config(SCATTER))(infer({"R": ints([1, 2], [3, 4])}))
    np.testing.assert_array_equal(call.arrays["O"], [[2, 4], [6, 8]])
    assert Doubling.fed[0]["R"].shape == (4,)


def test_output_that_does_not_add_up() -> None:
    class Short(Doubling):
        def execute(self, loaded: Any, inputs: Any, outputs: Any) -> dict[str, np.ndarray[Any, Any]]:
            return {"O": inputs["R"][1:]}

    (call,) = Served(Short, config(SCATTER))(infer({"R": ints([1, 2, 3])}))
    assert call.error == "output 'O' of model 'x' has 2 elements for a batch whose input 'R' asks for 3"


def test_ragged_strings_beside_an_input_that_is_not_ragged() -> None:
    class Counting(Doubling):
        def execute(self, loaded: Any, inputs: Any, outputs: Any) -> dict[str, np.ndarray[Any, Any]]:
            self.fed.append(dict(inputs))
            return {"O": inputs["F"]}

    text = """
        name: "x" backend: "counting" max_batch_size: 8
        input { name: "S" data_type: TYPE_STRING dims: -1 allow_ragged_batch: true }
        input { name: "F" data_type: TYPE_INT32 dims: 1 }
        output { name: "O" data_type: TYPE_INT32 dims: 1 }
    """
    words = [np.array([[b"a", b"bc"]], object), np.array([[b"d"]], object)]
    numbers = [infer({"S": Tensor.from_array("S", word), "F": ints([i])}) for i, word in enumerate(words)]
    calls = Served(Counting, config(text))(*numbers)
    assert [call.arrays["O"].tolist() for call in calls] == [[[0]], [[1]]]
    assert Doubling.fed[0]["S"].tolist() == [b"a", b"bc", b"d"] and Doubling.fed[0]["F"].shape == (2, 1)


SUMS = """
    name: "x" backend: "onnxruntime" max_batch_size: 8
    input { name: "R" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }
    output { name: "SUM" data_type: TYPE_FP32 dims: 1 }
    output { name: "DOUBLE" data_type: TYPE_FP32 dims: -1 }
    batch_input {
      kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO
      target_name: "ENDS" data_type: TYPE_INT32 source_input: "R"
    }
    batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "DOUBLE" source_input: "R" }
"""


@pytest.fixture
def sums(tmp_path: Path) -> Served:
    """SUM[i] is the sum of the i-th request's elements: a difference of prefix sums; DOUBLE is 2 * R."""
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    from backends.onnxruntime.backend import OnnxRuntimeBackend

    node, value = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    constants: dict[str, tuple[str, list[float]]] = {
        "zero": ("FLOAT", [0.0]),
        "axis": ("INT64", [0]),
        "column": ("INT64", [1]),
        "one": ("INT64", [1]),
        "last": ("INT64", [-1]),
        "end": ("INT64", [2**31]),
    }
    nodes = [
        node("CumSum", ["R", "axis"], ["running"]),
        node("Concat", ["zero", "running"], ["prefix"], axis=0),
        node("Slice", ["ENDS", "one", "end"], ["to"]),
        node("Slice", ["ENDS", "axis", "last"], ["from"]),
        node("Gather", ["prefix", "to"], ["upper"]),
        node("Gather", ["prefix", "from"], ["lower"]),
        node("Sub", ["upper", "lower"], ["flat"]),
        node("Unsqueeze", ["flat", "column"], ["SUM"]),
        node("Add", ["R", "R"], ["DOUBLE"]),
    ]
    graph = onnx.helper.make_graph(
        nodes,
        "sums",
        [value("R", 1, ["elements"]), value("ENDS", 6, ["ends"])],
        [value("SUM", 1, ["batch", 1]), value("DOUBLE", 1, ["elements"])],
        [
            onnx.helper.make_tensor(name, getattr(onnx.TensorProto, kind), [len(data)], data)
            for name, (kind, data) in constants.items()
        ],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.onnx").write_bytes(model.SerializeToString())
    parsed = config(SUMS)
    parsed.default_model_filename = "model.onnx"
    return Served(OnnxRuntimeBackend, parsed, tmp_path)


def check_sums(call: Call, row: Sequence[float]) -> None:
    assert call.arrays["SUM"].tolist() == [[sum(row)]]
    assert call.arrays["DOUBLE"].tolist() == [[2 * element for element in row]]


def test_onnx_model_sums_ragged_segments(sums: Served) -> None:
    rows = [[1, 2, 3], [10], [100, 200]]
    calls = sums(*(infer({"R": np.array([row], np.float32)}) for row in rows))
    for call, row in zip(calls, rows, strict=True):
        check_sums(call, row)
    check_sums(sums(infer({"R": np.array([[4, 5]], np.float32)}))[0], [4, 5])
