"""References of tensors of all kinds, and the cells of their rows."""

import math

import numpy as np
import pytest

from app.core.drift.building import side, watch
from app.core.drift.cells import cells_of
from app.core.drift.extraction import Rows, columns
from app.core.drift.reference import Reference, decode_reference, encode_reference
from app.core.errors import InferError

RNG = np.random.default_rng(3)
ROWS = 2000


def pictures(channels_last: bool = False) -> Rows:
    shape = (ROWS // 10, 32, 32, 3) if channels_last else (ROWS // 10, 3, 32, 32)
    return RNG.random(shape, np.float32)


@pytest.mark.parametrize(
    ("rows", "kind", "number"),
    [
        (RNG.normal(size=(ROWS, 13)).astype(np.float32), "numbers", 13),
        (RNG.normal(size=(ROWS, 4, 4)), "numbers", 16),
        (RNG.integers(0, 3, (ROWS, 1)), "numbers", 1),
        (RNG.dirichlet([1, 1, 1], ROWS), "classes", 3),
        (RNG.normal(size=(ROWS, 384)).astype(np.float32), "vector", 17),
        (RNG.normal(size=(ROWS, 20, 20)), "summary", 6),
        (pictures(), "picture", 18),
        (pictures(channels_last=True), "picture", 18),
        (np.array([[b"a"], [b"b"]] * 1000, object), "labels", 1),
        (np.array([[b"text %d" % number] for number in range(ROWS)], object), "text", 3),
    ],
)
def test_a_tensor_is_watched_by_its_kind(rows: Rows, kind: str, number: int) -> None:
    found = watch("t", [rows])
    assert found is not None
    assert (found.kind, len(found.features)) == (kind, number)
    for feature, column in zip(found.features, columns(found, rows[:100]) or [], strict=True):
        counts = cells_of(feature).count(column)
        assert counts.sum() == 100 and len(counts) == len(feature.counts)
        assert sum(feature.counts) == len(rows)


def test_bins_of_numbers_have_equal_shares_and_ends() -> None:
    found = watch("x", [np.arange(16_000, dtype=np.float64).reshape(-1, 1)])
    assert found is not None
    feature = found.features[0]
    assert feature.counts[3:-2] == (1000,) * 16
    column = np.array([math.nan, -math.inf, -1601.0, -1.0, 0.0, 15_999.0, 16_000.0, 17_700.0, math.inf])
    counts = cells_of(feature).count(column).tolist()
    assert counts == [1, 2, 1, 1, *[0] * 14, 1, 1, 2]


def test_a_number_that_was_always_the_same_has_one_bin() -> None:
    found = watch("x", [np.full((ROWS, 1), 2.5)])
    assert found is not None
    assert cells_of(found.features[0]).count(np.array([2.5, 2.6, 2.4])).tolist() == [0, 1, 0, 1, 0, 1]


def test_numbers_beyond_all_bounds_can_be_references() -> None:
    for value in (np.finfo(np.float64).max, np.nan, np.inf, 0.0):
        rows = RNG.normal(size=(ROWS, 1))
        rows[:50] = value
        found = watch("x", [rows])
        assert found is not None
        decode_reference(encode_reference(Reference(side({"x": [rows]}, 1.0, "rows")[0])))


def test_categories_beyond_the_most_frequent_are_known() -> None:
    names = [b"v%03d" % min(number, 79) for number in range(80) for _ in range(100 - number)]
    found = watch("x", [np.array(names, object).reshape(-1, 1)])
    assert found is not None and found.kind == "labels"
    feature = found.features[0]
    assert (len(feature.values), len(feature.known)) == (64, 16)
    counts = cells_of(feature).count(["v000", "v079", "strange"])
    assert (counts[0], counts[-2], counts[-1]) == (1, 1, 1)


def test_rows_of_another_shape_have_no_features() -> None:
    found = watch("x", [RNG.normal(size=(ROWS, 13))])
    assert found is not None
    assert columns(found, RNG.normal(size=(5, 12))) is None


def test_tensors_beyond_the_limit_are_left_out() -> None:
    wide = {f"t{number}": [RNG.normal(size=(ROWS, 64))] for number in range(5)}
    found, left = side(wide, 1.0, "rows")
    assert [tensor.name for tensor in found.tensors] == ["t0", "t1", "t2", "t3"] and left == ["t4"]
    assert (found.rows, side({"empty": [np.zeros((0, 3))]}, 1.0, "rows")[1]) == (ROWS, ["empty"])


def test_a_reference_is_read_as_it_was_written() -> None:
    inputs, _ = side({"x": [RNG.normal(size=(ROWS, 2))]}, 5.0, "rows")
    outputs, _ = side({"y": [RNG.dirichlet([1, 1], ROWS)]}, 6.0, "rows")
    reference = Reference(inputs, {"2": outputs})
    assert decode_reference(encode_reference(reference)) == reference
    assert len(reference.of(1).features) == 2 and len(reference.of(2).features) == 5


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ((b'"rows": 2000', b'"rows": 20'), "20 rows, but a reference needs 1000"),
        ((b'"counts": [', b'"counts": [7,'), "edges and counts"),
        ((b'"kind": "numbers"', b'"kind": "colours"'), "Invalid enum value 'colours'"),
        ((b'"format": 1', b'"format": 2'), "Invalid enum value 2"),
        ((b"{", b"["), "Expected `object`"),
    ],
)
def test_a_bad_reference_is_refused_with_the_reason(change: tuple[bytes, bytes], why: str) -> None:
    text = encode_reference(Reference(side({"x": [RNG.normal(size=(ROWS, 1))]}, 5.0, "rows")[0]))
    assert change[0] in text
    with pytest.raises(InferError, match=why):
        decode_reference(text.replace(*change, 1))
