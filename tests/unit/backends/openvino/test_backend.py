"""Models executed by OpenVINO: batches, memory, threads, formats, failures."""

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from app.core.errors import ErrorCode, InferError
from app.core.tensors import Tensor
from backends.base import Instance
from backends.openvino.backend import OpenVinoBackend
from backends.openvino.runs import Runs
from tests.unit.backend_harness import Served, infer
from tests.unit.backends.openvino.networks import model, parameter, parameters, result, save, sums

ROWS = """
    max_batch_size: 4
    input { name: "A" data_type: TYPE_FP32 dims: 4 } input { name: "B" data_type: TYPE_FP32 dims: 4 }
    output { name: "SUM" data_type: TYPE_FP32 dims: 4 } output { name: "DOUBLE" data_type: TYPE_FP32 dims: 4 }
"""
PAIRS = """
    max_batch_size: 4
    input { name: "A" data_type: TYPE_FP32 dims: 4 }
    output { name: "OUT" data_type: TYPE_FP32 dims: [ 2, 2 ] }
"""


def serve(folder: Path, text: str = "", **settings: str) -> Served:
    served = model(folder, text, **settings)
    served.config.CopyFrom(OpenVinoBackend.auto_complete(served))
    return Served(OpenVinoBackend, served)


def load_error(folder: Path, text: str = "", **settings: str) -> InferError:
    with pytest.raises(InferError) as caught:
        serve(folder, text, **settings)
    return caught.value


def rows(count: int, value: float = 1) -> Any:
    return np.full((count, 4), value, np.float32)


def pairs(folder: Path, batch: int) -> Path:
    """OUT = A in the shape [batch, 2, 2], which is a constant of the model."""
    value = parameter("A", (batch, 4))
    shape = op.constant(np.array([batch, 2, 2]))
    return save(folder, [value], [result("OUT", op.reshape(value, shape, False))])


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int8, np.int32, np.int64, np.float16, np.float32])
def test_answers_of_every_type_are_the_frameworks_own(tmp_path: Path, dtype: Any) -> None:
    value = parameter("A", (-1, 3), dtype)
    node = op.logical_not(value) if dtype is np.bool_ else op.maximum(value, op.constant(np.array(1, dtype)))
    save(tmp_path, [value], [result("OUT", node)])
    array = np.array([[0, 1, 2]], dtype)
    own = ov.Core().compile_model(tmp_path / "1" / "model.xml", "CPU")(array)["OUT"]
    found = serve(tmp_path)(infer({"A": array}))[0].arrays["OUT"]
    assert found.dtype == dtype
    assert np.array_equal(found, own)


def test_requests_of_a_batch_get_their_own_rows(tmp_path: Path) -> None:
    calls = serve(sums(tmp_path), ROWS)(
        *(infer({"A": rows(count, count), "B": rows(count, 10)}) for count in (1, 2, 1))
    )
    assert [call.arrays["SUM"].tolist() for call in calls] == [rows(n, n + 10).tolist() for n in (1, 2, 1)]
    assert [call.arrays["DOUBLE"].tolist() for call in calls] == [rows(n, 2 * n).tolist() for n in (1, 2, 1)]


@pytest.mark.parametrize("fixed", [(1, 4), (4, 4)])
def test_fixed_batch_dimension_is_made_variable(tmp_path: Path, fixed: Sequence[int]) -> None:
    served = serve(sums(tmp_path, fixed), ROWS)
    assert served.instance.state._rows == 0
    for count in (1, 3, 4):
        (call,) = served(infer({"A": rows(count), "B": rows(count)}))
        assert call.arrays["SUM"].tolist() == rows(count, 2).tolist()


def test_batch_that_the_model_fixes_is_padded(tmp_path: Path) -> None:
    served = serve(pairs(tmp_path, 4), PAIRS)
    calls = served(infer({"A": rows(1, 1)}), infer({"A": rows(2, 2)}))
    assert [call.arrays["OUT"].tolist() for call in calls] == [[[[1, 1]] * 2], [[[2, 2]] * 2] * 2]
    assert served(infer({"A": rows(4, 3)}))[0].arrays["OUT"].shape == (4, 2, 2)


def test_padding_may_be_refused(tmp_path: Path) -> None:
    served = serve(pairs(tmp_path, 4), PAIRS + parameters(ENABLE_BATCH_PADDING="NO"))
    assert served(infer({"A": rows(3)}))[0].error == (
        "expected requests with batch size '4', got '3'... this error can be avoided by setting"
        " 'ENABLE_BATCH_PADDING' parameter in model configuration to 'YES' at a performance cost."
    )
    assert served(infer({"A": rows(4)}))[0].arrays["OUT"].shape == (4, 2, 2)


def test_skipping_the_dynamic_batch_size_compiles_for_the_largest(tmp_path: Path) -> None:
    served = serve(sums(tmp_path), ROWS + parameters(SKIP_OV_DYNAMIC_BATCHSIZE="yes"))
    assert served.model.state.compiled.model.inputs[0].get_partial_shape() == ov.PartialShape([4, 4])
    (call,) = served(infer({"A": rows(2), "B": rows(2)}))
    assert call.arrays["SUM"].tolist() == rows(2, 2).tolist()


def test_fixed_batch_of_another_size_is_an_error(tmp_path: Path) -> None:
    error = load_error(pairs(tmp_path, 2), PAIRS)
    assert error.code == ErrorCode.INTERNAL
    assert error.message.startswith("openvino error in setting max batch size : ")


def test_output_of_another_number_of_rows_is_an_error(tmp_path: Path) -> None:
    value = parameter("A", (-1, 4))
    save(tmp_path, [value], [result("OUT", op.reshape(value, op.constant(np.array([-1, 2])), False))])
    served = serve(tmp_path, PAIRS.replace("[ 2, 2 ]", "2"))
    assert served(infer({"A": rows(3)}))[0].error == (
        "expected the batch size of openvino model output to be 3, got 6"
    )


def test_layers_take_the_configured_shape(tmp_path: Path) -> None:
    text = """
        input { name: "A" data_type: TYPE_FP32 dims: [ -1, 2 ] }
        input { name: "B" data_type: TYPE_FP32 dims: [ -1, 2 ] }
        output { name: "SUM" data_type: TYPE_FP32 dims: [ -1, 2 ] }
    """
    served = serve(sums(tmp_path, (1, 4)), text + parameters(RESHAPE_IO_LAYERS="YES"))
    array = np.ones((3, 2), np.float32)
    assert served(infer({"A": array, "B": array}))[0].arrays["SUM"].tolist() == (array * 2).tolist()


def test_data_types_of_the_configuration_are_converted(tmp_path: Path) -> None:
    text = ROWS.replace("TYPE_FP32", "TYPE_INT32", 1).replace(
        'SUM" data_type: TYPE_FP32', 'SUM" data_type: TYPE_FP16'
    )
    (call,) = serve(sums(tmp_path), text)(infer({"A": rows(1).astype(np.int32), "B": rows(1)}))
    assert call.arrays["SUM"].dtype == np.float16
    assert call.arrays["SUM"].tolist() == [[2] * 4]


def test_client_fault_fails_one_request_alone(tmp_path: Path) -> None:
    served = serve(sums(tmp_path, (-1, -1)), "max_batch_size: 4")
    short, longer = np.ones((1, 2), np.float32), np.ones((1, 3), np.float32)
    bad, good = served(infer({"A": short, "B": longer}), infer({"A": longer, "B": longer}))
    assert bad.error.startswith("openvino error in running inference : ")
    assert good.arrays["SUM"].tolist() == [[2, 2, 2]]


def test_missing_input_is_an_error_not_the_previous_ones(tmp_path: Path) -> None:
    served = serve(sums(tmp_path), ROWS)
    served(infer({"A": rows(1), "B": rows(1, 7)}))
    assert served(infer({"A": rows(1)}))[0].error == "expected all inputs of the model: A, B"


@pytest.mark.parametrize("batch", [0, 4])
def test_responses_do_not_change_with_later_executions(tmp_path: Path, batch: int) -> None:
    """An output that is an input, too: OpenVINO returns the input's own memory for it."""
    value = parameter("A", (-1, 4))
    save(tmp_path, [value], [result("OUT", op.relu(value)), op.result(value)])
    served = serve(tmp_path, f"max_batch_size: {batch}")
    data = bytearray(rows(1, 5).tobytes())
    (call,) = served(infer({"A": Tensor("A", "FP32", (1, 4), data)}))
    data[:] = rows(1, 6).tobytes()
    served(infer({"A": rows(1, 7)}))
    assert {name: array.tolist() for name, array in call.arrays.items()} == {"OUT": [[5] * 4], "A": [[5] * 4]}


@pytest.mark.parametrize("make", [bytes, bytearray])
def test_inputs_are_read_where_they_lie(tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = serve(sums(tmp_path), ROWS).instance.state
    array = np.frombuffer(make(rows(2, 3).tobytes()), np.float32).reshape(2, 4)
    seen: list[int] = []
    infer_of_openvino = loaded._infer

    def record(tensors: Any, *flags: bool) -> Any:
        seen.extend(tensor.data.ctypes.data for tensor in tensors.values())
        return infer_of_openvino(tensors, *flags)

    monkeypatch.setattr(loaded, "_infer", record)
    loaded.run({"A": array, "B": array}, ["SUM"])
    assert seen == [array.ctypes.data] * 2
    assert array.tolist() == rows(2, 3).tolist()


def test_empty_input(tmp_path: Path) -> None:
    served = serve(sums(tmp_path, (-1, -1)))
    empty = np.ones((2, 0), np.float32)
    assert served(infer({"A": empty, "B": empty}))[0].arrays["SUM"].shape == (2, 0)


def test_variables_are_reset_for_each_execution(tmp_path: Path) -> None:
    value = parameter("A", (1, 4))
    info = op.read_value(op.constant(np.zeros((1, 4), np.float32)), "total")
    total = op.add(info, value)
    stored = op.assign(total, "total")
    output = result("OUT", total)
    (tmp_path / "1").mkdir()
    network = ov.Model([output], [stored], [value], "m")
    ov.save_model(network, tmp_path / "1" / "model.xml", compress_to_fp16=False)
    served = serve(tmp_path)
    for _ in range(2):
        assert served(infer({"A": rows(1, 3)}))[0].arrays["OUT"].tolist() == [[3] * 4]


@pytest.fixture
def gil_is_given_up_freely_only() -> Iterator[None]:
    """No thread is made to release the GIL: others run only while one waits, or in code that releases it."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("gil_is_given_up_freely_only")
def test_an_instance_executes_while_another_one_does(tmp_path: Path) -> None:
    """A long execution leaves no long gap between short ones, as the GIL or one stream for both would."""
    weights = np.full((400, 400), 1 / 400, np.float32)
    value = node = parameter("A", (-1, 400))
    for _ in range(4):
        node = op.matmul(node, op.constant(weights), False, False)
    save(tmp_path, [value], [result("OUT", node)])
    two = "instance_group { kind: KIND_CPU count: 2 }"
    served = serve(tmp_path, two + parameters(INFERENCE_NUM_THREADS="1"))
    compiled = served.model.state.compiled
    second = Instance(served.model, "m_0_1", index=1)
    served.backend.instance_initialize(second)
    assert served.model.state.compiled is compiled
    array = np.ones((4096, 400), np.float32)
    tensors = {0: ov.Tensor(array, array.shape, ov.Type.f32)}
    ends: list[float] = []
    stop, warm = threading.Event(), threading.Event()

    def execute() -> None:
        while not stop.is_set():
            found = second.state.run({"A": np.ones((1, 400), np.float32)}, ["OUT"])
            assert np.allclose(found["OUT"], 1, atol=1e-4)
            ends.append(time.monotonic())
            warm.set()

    def execute_long() -> tuple[float, float]:
        started = time.monotonic()
        served.instance.state._infer(tensors, True, False)
        return started, time.monotonic()

    def longest_gap() -> float:
        started, ended = execute_long()
        during = [started, *(end for end in ends if started < end < ended), ended]
        return max(later - earlier for earlier, later in pairwise(during))

    alone = min(end - start for start, end in [execute_long() for _ in range(5)])
    other = threading.Thread(target=execute)
    other.start()
    assert warm.wait(60)
    # On a busy machine the other thread may have no processor for as long as one call takes.
    beside = any(longest_gap() < alone / 2 for _ in range(50))
    stop.set()
    other.join()
    assert beside


def test_first_run_is_over_when_the_model_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, ...]] = []
    run = Runs.run

    def record(self: Runs, feed: Any, outputs: Any) -> Any:
        shapes.append(feed["A"].shape)
        return run(self, feed, outputs)

    monkeypatch.setattr(Runs, "run", record)
    serve(sums(tmp_path / "batched"), ROWS)
    serve(sums(tmp_path / "plain", (-1, 4)))
    serve(pairs(tmp_path / "fixed", 4), PAIRS)
    assert [sorted(shapes[:2]), shapes[2:]] == [[(1, 4), (4, 4)], [(1, 4), (4, 4)]]


@pytest.mark.parametrize("kind", ["GPU", "MODEL"])
def test_other_kinds_are_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(InferError) as caught:
        Served(OpenVinoBackend, model(sums(tmp_path), ROWS), kind=kind)
    assert (caught.value.code, caught.value.message) == (
        ErrorCode.INVALID_ARG,
        "unable to load model 'm', Triton OpenVINO backend supports only Kind CPU and AUTO",
    )


def test_unknown_device_is_named(tmp_path: Path) -> None:
    assert load_error(sums(tmp_path), ROWS + parameters(TARGET_DEVICE="fpga")).message == (
        'openvino error in loading model : Device with "FPGA" name is not registered in the OpenVINO Runtime'
    )


@pytest.mark.parametrize("device", ["AUTO", "HETERO:CPU"])
def test_virtual_devices(tmp_path: Path, device: str) -> None:
    served = serve(sums(tmp_path), ROWS + parameters(TARGET_DEVICE=device))
    assert served(infer({"A": rows(1), "B": rows(1)}))[0].arrays["SUM"].tolist() == [[2] * 4]


@pytest.mark.parametrize(
    "values",
    [
        {"NUM_STREAMS": "AUTO"},
        {"NUM_STREAMS": "numa"},
        {"NUM_STREAMS": "2"},
        {"PERFORMANCE_HINT": "throughput"},
    ],
)
def test_streams(tmp_path: Path, values: dict[str, str]) -> None:
    served = serve(sums(tmp_path), ROWS + parameters(**values))
    assert served(infer({"A": rows(1), "B": rows(1)}))[0].arrays["SUM"].tolist() == [[2] * 4]


def test_missing_file(tmp_path: Path) -> None:
    error = load_error(tmp_path)
    assert (error.code, error.message) == (
        ErrorCode.UNAVAILABLE,
        f"unable to find '{tmp_path / '1' / 'model.xml'}' for model 'm'",
    )


def test_weights_that_are_missing_or_short(tmp_path: Path) -> None:
    value = parameter("A", (1, 4000))
    constant = op.constant(np.random.default_rng(1).random((1, 4000), np.float32))
    weights = save(tmp_path, [value], [result("OUT", op.add(value, constant))]) / "1" / "model.bin"
    weights.write_bytes(weights.read_bytes()[:100])
    assert load_error(tmp_path).message.startswith("openvino error in reading model : ")
    weights.unlink()
    assert load_error(tmp_path).message.startswith("openvino error in reading model : ")
