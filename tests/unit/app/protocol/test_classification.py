from typing import Any

import numpy as np
import pytest

from app.core.errors import ErrorCode, InferError
from app.core.tensors import Tensor
from app.protocol.classification import classify


def texts(tensor: Any) -> Any:
    return [element.decode() for element in tensor.array().ravel().tolist()]


@pytest.mark.parametrize(
    ("array", "count", "batched", "shape", "wanted"),
    [
        (np.array([1, 9, 5], np.int32), 2, False, (2,), ["9:1:b", "5:2"]),
        (np.array([1, 9, 5], np.uint8), 9, False, (3,), ["9:1:b", "5:2", "1:0:a"]),
        (np.array([[1, 2], [4, 3]], np.int64), 1, True, (2, 1), ["2:1:b", "4:0:a"]),
        (np.array([[1, 2], [4, 3]], np.int64), 1, False, (1,), ["4:2"]),
        (np.array([-31, 0.5], np.float32), 2, False, (2,), ["0.500000:1:b", "-31.000000:0:a"]),
        (np.array([1e-7, 1e10]), 2, False, (2,), ["10000000000.000000:1:b", "0.000000:0:a"]),
        (np.array([7, 7, 7], np.uint64), 3, False, (3,), ["7:0:a", "7:1:b", "7:2"]),
        (np.array([-128, 127], np.int8), 2, False, (2,), ["127:1:b", "-128:0:a"]),
        (np.zeros((0,), np.int8), 2, False, (0,), []),
        (np.zeros((0, 4), np.int8), 2, True, (2,), []),
    ],
)
def test_best_classes(array: Any, count: int, batched: bool, shape: Any, wanted: Any) -> None:
    tensor = classify(Tensor.from_array("O", array), count, ("a", "b", ""), batched)
    if array.size:
        assert (tensor.datatype, tensor.shape, texts(tensor)) == ("BYTES", shape, wanted)
    else:
        assert tensor.data == b""


@pytest.mark.parametrize("datatype", ["BOOL", "FP16", "BF16", "BYTES"])
def test_unsupported_datatypes_are_refused(datatype: str) -> None:
    with pytest.raises(InferError) as caught:
        classify(Tensor("O", datatype, (0,), b""), 1)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message == (
        f"class result not available for output due to unsupported type '{datatype}'"
    )


def test_size_is_limited_and_checked() -> None:
    with pytest.raises(InferError, match="classification output tensor too large"):
        classify(Tensor("O", "INT8", (1_000_001,), bytes(1_000_001)), 1)
    with pytest.raises(InferError, match="output tensor shape does not match size of output for 'O'"):
        classify(Tensor("O", "INT32", (2,), bytes(4)), 1)
