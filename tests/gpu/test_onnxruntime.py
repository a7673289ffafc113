"""ONNX Runtime on CUDA: bound tensors, page-locked copies, CUDA graphs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
    pytest.skip("this ONNX Runtime has no CUDA provider", allow_module_level=True)

from onnx import TensorProto  # noqa: E402

from app.core.tensors import Tensor  # noqa: E402
from tests.unit.backend_harness import Served, infer  # noqa: E402
from tests.unit.backends.onnxruntime.test_backend import ADD_SUB, add_sub, identity, one, serve  # noqa: E402


def on_gpu(text: str, folder: Path) -> Served:
    served = serve(text, folder, kind="GPU")
    assert served.instance.state.session.get_providers()[0] == "CUDAExecutionProvider"
    assert served.instance.state.runs is not None
    return served


def holds(served: Served, *counts: int) -> None:
    """A batch of requests of so many rows is answered right."""
    arrays = [np.full((count, 16), 7 * place + count, np.int32) for place, count in enumerate(counts)]
    calls = served(*(infer({"INPUT0": array, "INPUT1": 2 * array}) for array in arrays))
    for array, call in zip(arrays, calls, strict=True):
        assert (call.arrays["OUTPUT0"] == 3 * array).all()
        assert (call.arrays["OUTPUT1"] == -array).all()


@pytest.mark.parametrize("pinned", ["true", "false"])
def test_batches(pinned: str, tmp_path: Path) -> None:
    text = f"input_pinned_memory {{ enable: {pinned} }} output_pinned_memory {{ enable: {pinned} }}"
    served = on_gpu(ADD_SUB + f"optimization {{ {text} }}", add_sub(tmp_path))
    for counts in ((1,), (3, 2), (8,), (1, 1, 1), (2,)):
        holds(served, *counts)
    served.close()


def test_outputs_that_nobody_wants(tmp_path: Path) -> None:
    served = on_gpu(ADD_SUB, add_sub(tmp_path))
    array = np.full((1, 16), 3, np.int32)
    (call,) = served(infer({"INPUT0": array, "INPUT1": array}, ["OUTPUT1"]))
    assert list(call.arrays) == ["OUTPUT1"]
    holds(served, 1)


@pytest.mark.parametrize(
    ("kind", "number", "dtype"),
    [
        ("BF16", TensorProto.BFLOAT16, np.uint16),
        ("BOOL", TensorProto.BOOL, np.bool_),
        ("FP16", TensorProto.FLOAT16, np.float16),
        ("INT64", TensorProto.INT64, np.int64),
        ("UINT8", TensorProto.UINT8, np.uint8),
    ],
)
def test_types(kind: str, number: int, dtype: Any, tmp_path: Path) -> None:
    array = np.array([[0, 1], [1, 0]], dtype)
    served = on_gpu(one(f"TYPE_{kind}", "dims: 2"), identity(tmp_path, number, ("batch", 2)))
    (call,) = served(infer({"I": Tensor("I", kind, array.shape, array.tobytes())}))
    assert call.arrays["O"].tobytes() == array.tobytes()


def test_large_tensors_outlive_the_next_execution(tmp_path: Path) -> None:
    served = on_gpu(one("TYPE_FP32", "dims: 150000"), identity(tmp_path, shape=("batch", 150000)))
    arrays = [np.full((8, 150000), value, np.float32) for value in (1, 2, 3)]
    calls = [served(infer({"I": array}))[0] for array in arrays]
    for array, call in zip(arrays, calls, strict=True):
        assert (call.arrays["O"] == array).all()


GRAPHS = "optimization {{ cuda {{ graphs: true {} }} }}"


def test_graphs(tmp_path: Path) -> None:
    served = on_gpu(ADD_SUB + GRAPHS.format(""), add_sub(tmp_path))
    assert len(served.instance.state.runs._graphs) == 6
    for count in (1, 8, 2, 5, 3, 7, 4, 6, 1, 2, 8):
        holds(served, count)
    holds(served, 1, 2)


def test_a_graph_executes_padded_batches(tmp_path: Path) -> None:
    spec = "graph_spec { batch_size: 8 graph_lower_bound { batch_size: 5 } }"
    served = on_gpu(ADD_SUB + GRAPHS.format(spec), add_sub(tmp_path))
    for count in (8, 5, 6, 4, 7):
        holds(served, count)
