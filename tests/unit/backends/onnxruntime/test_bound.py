"""Small tensors in memory that is bound to a session once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from onnx import TensorProto, helper

from app.core.tensors import Tensor
from backends.base import Instance
from tests.unit.backend_harness import Call, Served, infer
from tests.unit.backends.onnxruntime.test_backend import ADD_SUB, add_sub, one, save, serve


def pair(number: int, rows: int = 1) -> dict[str, Any]:
    return {name: np.full((rows, 16), number, np.int32) for name in ("INPUT0", "INPUT1")}


def sums(calls: Sequence[Call]) -> list[int]:
    return [int(call.arrays["OUTPUT0"][0, 0]) for call in calls]


def is_bound(instance: Instance, *inputs: Tensor) -> bool:
    assert instance.answer is not None
    return instance.answer(inputs) is not None


def vector(served: Served, values: Sequence[int]) -> Call:
    (call,) = served(infer({"I": np.array(values, np.int64)}))
    return call


def test_bound_runs_answer_as_others_do(tmp_path: Path) -> None:
    served = serve(ADD_SUB, add_sub(tmp_path))
    for _ in range(3):
        for rows in (1, 2):
            assert sums(served(infer(pair(rows, rows)))) == [2 * rows]
        assert sums(served(*(infer(pair(number)) for number in (1, 2, 3)))) == [2, 4, 6]
    assert is_bound(served.instance, *infer(pair(1)).inputs)
    swapped = [Tensor(name, "INT32", (1, 16), bytes(64)) for name in ("INPUT1", "INPUT0")]
    assert not is_bound(served.instance, *swapped), "the order of the inputs is another one"
    served.close()


def test_a_response_does_not_change_with_the_next_run(tmp_path: Path) -> None:
    served = serve(ADD_SUB, add_sub(tmp_path))
    calls = [call for number in range(5) for call in served(infer(pair(number)))]
    batches = [served(*(infer(pair(number)) for number in numbers)) for numbers in ((1, 2), (3, 4), (5, 6))]
    assert sums(calls) == [0, 2, 4, 6, 8]
    assert [sums(batch) for batch in batches] == [[2, 4], [6, 8], [10, 12]]
    served.close()


def test_an_output_that_is_not_asked_for_is_not_sent(tmp_path: Path) -> None:
    served = serve(ADD_SUB, add_sub(tmp_path))
    served(infer(pair(1)))
    (some,), (both,) = served(infer(pair(2), ["OUTPUT1"])), served(infer(pair(2), ["OUTPUT1", "OUTPUT0"]))
    assert list(some.arrays) == ["OUTPUT1"] and sorted(both.arrays) == ["OUTPUT0", "OUTPUT1"]
    served.close()


def test_shapes_that_follow_from_the_data(tmp_path: Path) -> None:
    node = helper.make_node("NonZero", ["I"], ["O"])
    tensors = ("I", TensorProto.INT64, ("n",)), ("O", TensorProto.INT64, (1, "m"))
    both = one("TYPE_INT64", "dims: -1", 0).partition("output")
    text = "".join((*both[:2], both[2].replace("dims: -1", "dims: 1 dims: -1")))
    served = serve(text, save(tmp_path, [node], [tensors[0]], [tensors[1]]))
    for values in ((1, 0, 1), (1, 1, 1), (0, 0, 1), (1, 0, 0)):
        assert vector(served, values).arrays["O"].tolist() == [[i for i, n in enumerate(values) if n]]
    assert not is_bound(served.instance, Tensor.from_array("I", np.array([1, 0, 1])))
    served.close()


def test_a_fault_of_the_model_leaves_its_shapes_bound(tmp_path: Path) -> None:
    constant = helper.make_tensor("C", TensorProto.INT64, [2], [10, 20])
    nodes = [
        helper.make_node("Constant", [], ["D"], value=constant),
        helper.make_node("Gather", ["D", "I"], ["O"]),
    ]
    tensors = ("I", TensorProto.INT64, ("n",)), ("O", TensorProto.INT64, ("n",))
    served = serve(one("TYPE_INT64", "dims: -1", 0), save(tmp_path, nodes, [tensors[0]], [tensors[1]]))
    for _ in range(2):
        assert vector(served, (0, 1)).arrays["O"].tolist() == [10, 20]
        assert "indices element out of data bounds" in vector(served, (0, 7)).error
    assert is_bound(served.instance, Tensor.from_array("I", np.array([0, 1])))
    served.close()


def test_large_tensors_are_not_bound(tmp_path: Path) -> None:
    shape = ("batch", 1024)
    served = serve(ADD_SUB.replace("16", "1024"), add_sub(tmp_path, shape))
    arrays = {name: np.ones((1, 1024), np.int32) for name in ("INPUT0", "INPUT1")}
    first, second = served(infer(arrays)), served(infer(arrays))
    assert sums(first) == sums(second) == [2]
    assert not is_bound(served.instance, *infer(arrays).inputs)
    served.close()


def test_outputs_of_strings_are_not_bound(tmp_path: Path) -> None:
    nodes = [helper.make_node("Cast", ["I"], ["O"], to=TensorProto.STRING)]
    tensors = ("I", TensorProto.INT64, ("n",)), ("O", TensorProto.STRING, ("n",))
    head, output, tail = one("TYPE_INT64", "dims: -1", 0).partition("output")
    text = head + output + tail.replace("TYPE_INT64", "TYPE_STRING")
    served = serve(text, save(tmp_path, nodes, [tensors[0]], [tensors[1]]))
    for _ in range(2):
        assert vector(served, (1, 20)).arrays["O"].tolist() == [b"1", b"20"]
    served.close()
