"""Rows are counted by the cells of their reference, and the counts of several counters add exactly."""

import math
from typing import Any

import numpy as np
import pytest

from app.core.drift.building import side
from app.core.drift.cells import NAN
from app.core.drift.counts import RowCounts
from app.core.drift.reference import Reference
from app.core.tensors import RegionSlice, Tensor
from app.drift.counter import GROUP, RowCounter
from tests.unit.app.drift_fakes import reference

RNG = np.random.default_rng(5)
REFERENCE = reference("x", 13, "y").of(1)


def tensors(rows: int = 1, **changed: Any) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return inputs and outputs."""
    x = changed.get("x", RNG.normal(size=(rows, 13)).astype(np.float32))
    y = changed.get("y", RNG.dirichlet([1, 1, 1], rows))
    return (Tensor.from_array("x", x),), (Tensor.from_array("y", y),)


def test_counts_of_two_add_to_those_of_one_exactly() -> None:
    one, two = RowCounter(REFERENCE), [RowCounter(REFERENCE), RowCounter(REFERENCE)]
    parts = [RowCounts(), RowCounts()]
    whole = RowCounts()
    for number in range(2000):
        rows = tensors(1 + number % 3)
        one.add(*rows, 1 + number % 3, True)
        two[number % 7 < 3].add(*rows, 1 + number % 3, True)
        if number % 501 == 500:
            whole += one.take()
        if number % 333 == 0:
            parts = [part + counter.take() for part, counter in zip(parts, two, strict=True)]
    parts = [part + counter.take() for part, counter in zip(parts, two, strict=True)]
    assert whole + one.take() == parts[0] + parts[1]


def test_a_group_is_counted_at_once_and_one_tensor_in_a_turn() -> None:
    counter = RowCounter(REFERENCE)
    for _ in range(GROUP):
        counter.add(*tensors(), 1, True)
    waiting = [watch.waiting for watch in counter._watches()]
    assert waiting == [0, GROUP]
    counter.add(*tensors(), 1, True)
    assert [watch.waiting for watch in counter._watches()] == [1, 0]


def test_nothing_is_kept_after_it_was_taken() -> None:
    counter = RowCounter(REFERENCE)
    counter.add(*tensors(), 1, True)
    assert counter.take().rows == 1
    assert counter.take() == RowCounts(0, [[0] * len(each.counts) for each in REFERENCE.features])


def test_memory_of_a_request_may_change_once_it_was_added() -> None:
    data = bytearray(np.zeros((1, 13), np.float32).tobytes())
    counter = RowCounter(REFERENCE)
    counter.add((Tensor("x", "FP32", (1, 13), memoryview(data)),), (), 1, True)
    data[:4] = np.float32(np.nan).tobytes()
    taken = counter.take()
    assert taken.cells[0][NAN] == 0 and taken.zeros == {"x": 1}


def test_remarkable_rows_are_counted_by_tensor() -> None:
    counter = RowCounter(REFERENCE)
    x = np.ones((3, 13), np.float32)
    x[0, 2] = math.nan
    x[1] = 0
    counter.add(*tensors(3, x=x), 3, True)
    counter.add(*tensors(2, x=np.ones((2, 12), np.float32)), 2, True)
    taken = counter.take()
    assert (taken.cells[2][NAN], taken.zeros, taken.shapes) == (1, {"x": 1}, {"x": 2})


def test_the_confidence_of_classes_is_summed_in_whole_millionths() -> None:
    counter = RowCounter(REFERENCE)
    counter.add(*tensors(2, y=np.array([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]])), 2, True)
    taken = counter.take()
    assert (taken.confidence, taken.classified) == (1_200_000, 2)


@pytest.mark.parametrize(
    "tensor",
    [
        Tensor("x", "FP32", (1, 13), b"short"),
        Tensor("x", "FP32", (0, 13), b""),
        Tensor("x", "FP32", (-1, 13), bytes(52)),
        Tensor("x", "BYTES", (1, 13), b"\xff" * 8),
        Tensor("x", "FP32", (1, 13), RegionSlice("r", 0, 52)),
        Tensor("strange", "FP32", (1, 13), bytes(52)),
    ],
)
def test_bytes_that_are_no_rows_are_left_out(tensor: Tensor) -> None:
    counter = RowCounter(REFERENCE)
    counter.add((tensor,), (), 1, True)
    assert sum(map(sum, counter.take().cells)) == 0


def test_of_long_batches_the_same_rows_of_all_tensors_are_counted() -> None:
    rows = np.repeat(np.arange(3), 200)
    inputs, _ = side({"a": [rows.reshape(-1, 1)] * 2, "b": [rows.reshape(-1, 1) * 10] * 2}, 1.0, "rows")
    counter = RowCounter(Reference(inputs).of(1))
    given = tuple(Tensor.from_array(name, rows.reshape(-1, 1) * by) for name, by in (("a", 1), ("b", 10)))
    counter.add(given, (), 64, True)
    taken = counter.take()
    assert taken.rows == 64 and taken.cells[0] == taken.cells[1] and sum(taken.cells[0]) == 64


def test_wide_tensors_of_a_request_count_a_few_rows() -> None:
    pictures = RNG.random((1000, 3, 16, 16), np.float32)
    inputs, _ = side({"image": [pictures]}, 1.0, "pictures")
    counter = RowCounter(Reference(inputs).of(1))
    counter.add((Tensor.from_array("image", pictures[:64]),), (), 64, True)
    assert sum(counter.take().cells[0]) == 4
