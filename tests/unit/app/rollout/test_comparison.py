"""Outputs of two versions side by side."""

from typing import Any

import numpy as np
import pytest

from app.core.tensors import Tensor
from app.rollout.comparison import MAX_DIFFERENCE, Comparison

NAN, INF = np.nan, np.inf


def compare(a: Any, b: Any, dtype: Any = np.float32, datatype: str = "") -> Comparison:
    return Comparison.of(*((Tensor.from_array("y", np.array(each, dtype), datatype),) for each in (a, b)))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    ("a", "b", "difference", "agrees"),
    [
        ([1, 2], [1, 2], 0.0, True),
        ([1, 2], [1, 2.5], 0.25, True),
        ([2, 2.25], [2.25, 2], 0.125, False),
        ([0, 1], [-0.0, 1], 0.0, True),
        ([[1, 2], [4, 3]], [[1, 2], [3, 4]], 1 / 3, False),
        ([NAN, INF, 2], [NAN, INF, 3], 0.5, True),
        ([1, 2], [1, NAN], MAX_DIFFERENCE, True),
        ([1, 2], [1, INF], MAX_DIFFERENCE, True),
        ([INF, 2], [1, 2], MAX_DIFFERENCE, False),
        (4, 5, 0.25, True),
    ],
)
def test_floats(dtype: Any, a: Any, b: Any, difference: float, agrees: bool) -> None:
    found = compare(a, b, dtype)
    assert found.difference == pytest.approx(difference, rel=1e-3) and found.agrees is agrees


def test_small_numbers_are_compared_with_a_floor() -> None:
    assert compare([0.0], [1e-6]).difference == pytest.approx(1.0)


def test_bf16_is_compared_by_value() -> None:
    found = compare([0x3F80, 0x4000], [0x3F80, 0x4020], np.uint16, "BF16")  # 1, 2 and 1, 2.5
    assert found == (0.25, True)


@pytest.mark.parametrize(("a", "b", "dtype"), [([1, 2], [1, 3], np.int64), ([b"a"], [b"b"], np.object_)])
def test_other_types_are_equal_or_not(a: Any, b: Any, dtype: Any) -> None:
    assert compare(a, a, dtype) == (0.0, True)
    assert compare(a, b, dtype) == (1.0, False)


def test_outputs_of_other_names_types_or_shapes_cannot_be_compared() -> None:
    one = Tensor.from_array("y", np.ones((2, 2), np.float32))
    for other in (
        Tensor.from_array("z", np.ones((2, 2), np.float32)),
        Tensor.from_array("y", np.ones((4, 1), np.float32)),
        Tensor.from_array("y", np.ones((2, 2), np.int32)),
    ):
        assert Comparison.of((one,), (other,)) == (MAX_DIFFERENCE, False)
    assert Comparison.of((one,), ()) == (MAX_DIFFERENCE, False)
    assert Comparison.of((), ()) == (0.0, True)


def test_the_worst_of_several_outputs_counts() -> None:
    a = tuple(Tensor.from_array(name, np.array([1, 4], np.float32)) for name in "xy")
    b = (Tensor.from_array("y", np.array([1, 5], np.float32)), a[0])
    assert Comparison.of(a, b) == (0.25, True)
