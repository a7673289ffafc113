"""Distances on cells are those of their formulas."""

import math

import numpy as np
import pytest

from app.core.drift.building import watch
from app.core.drift.cells import cells_of
from app.core.drift.distances import distances, jensen_shannon, stability_index
from app.core.drift.reference import Feature


def feature(rows: int = 20_000) -> Feature:
    """Return a normal one."""
    found = watch("x", [np.random.default_rng(1).normal(size=(rows, 1))])
    assert found is not None
    return found.features[0]


def test_measures_of_shares_are_those_of_scipy() -> None:
    before, now = (0.1, 0.2, 0.7), (0.3, 0.3, 0.4)
    assert jensen_shannon(before, now) == pytest.approx(0.2736668758986993)  # scipy's, base 2
    assert stability_index(before, now) == pytest.approx(0.42815370492506505)


def test_a_shift_is_its_size_in_deviations() -> None:
    reference = feature()
    shifted = np.random.default_rng(2).normal(0.5, size=50_000)
    found = distances(reference, cells_of(reference).count(shifted).tolist())
    assert found.wasserstein == pytest.approx(0.55, abs=0.06)
    # The greatest distance of two normal distributions half a deviation apart, less what bins hide.
    assert found.ks == pytest.approx(math.erf(0.25 / math.sqrt(2)), abs=0.02)
    assert found.psi == pytest.approx(0.25, abs=0.03)  # of normal ones: the square of the shift


def test_the_same_rows_have_no_distance() -> None:
    reference = feature()
    found = distances(reference, reference.counts)
    assert (found.psi, found.js, found.wasserstein, found.ks) == (0, 0, 0, 0)


def test_categories_have_no_order() -> None:
    found = watch("x", [np.array([[b"a"], [b"b"]] * 500, object)])
    assert found is not None and found.kind == "labels"
    measured = distances(found.features[0], (900, 100, 0, 0))
    assert measured.wasserstein is None and measured.ks is None
    assert measured.psi == pytest.approx(0.4 * math.log(0.9 / 0.5) - 0.4 * math.log(0.1 / 0.5))
