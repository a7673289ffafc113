"""The rule alarms when rows change, and only then; the usual rules cry wolf."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from app.core.drift.building import watch
from app.core.drift.cells import cells_of
from app.core.drift.distances import distances
from app.core.drift.evidence import ALPHA, TOLERANCE, WINDOW, Evidence, after
from app.core.drift.reference import WatchedTensor

FEATURES = 13
RULES = TOLERANCE, ALPHA
Change = Callable[[npt.NDArray[np.float64]], None]


def reference(rng: np.random.Generator, rows: int = 10_000) -> WatchedTensor:
    """Return that of independent normal features."""
    found = watch("x", [rng.normal(size=(rows, FEATURES))])
    assert found is not None
    return found


def first_alarm(rng: np.random.Generator, most: int, change: Change | None = None) -> int:
    """Return the rows after which there is an alarm; 0 if there is none within `most`."""
    features = reference(rng).features
    cells = [cells_of(feature) for feature in features]
    evidence = [Evidence() for _ in features]
    for rows in range(WINDOW, most + 1, WINDOW):
        table = rng.normal(size=(WINDOW, FEATURES))
        if change is not None:
            change(table)
        for number, feature in enumerate(features):
            counts = cells[number].count(table[:, number]).tolist()
            evidence[number] = after(evidence[number], feature, counts, FEATURES, RULES)
        if any(each.alarmed for each in evidence):
            return rows
    return 0


def quarter(table: npt.NDArray[np.float64]) -> None:
    """Shift one feature by a quarter of its deviation."""
    table[:, 3] += 0.25


def test_a_quarter_of_a_deviation_in_one_feature_is_found() -> None:
    rng = np.random.default_rng(7)
    found = [first_alarm(rng, 5000, quarter) for _ in range(20)]
    assert sum(0 < rows <= 3500 for rows in found) >= 18


def test_unchanged_rows_give_no_alarm_where_usual_rules_always_do() -> None:
    rng = np.random.default_rng(8)
    assert [first_alarm(rng, 10_000) for _ in range(5)] == [0] * 5
    features = reference(rng).features
    worst_psi, worst_ks = 0.0, 0.0
    for _ in range(40):
        table = rng.normal(size=(WINDOW, FEATURES))
        for number, feature in enumerate(features):
            found = distances(feature, cells_of(feature).count(table[:, number]).tolist())
            worst_psi, worst_ks = max(worst_psi, found.psi), max(worst_ks, found.ks or 0.0)
    assert worst_psi > 0.1
    assert worst_ks > 1.36 / math.sqrt(WINDOW)  # p < 0.05


@pytest.mark.parametrize("stray", [math.nan, math.inf, -1e9])
def test_a_few_strays_are_found_that_shares_of_bins_hide(stray: float) -> None:
    def spoil(table: npt.NDArray[np.float64]) -> None:
        table[:5, 0] = stray  # two of a hundred

    assert 0 < first_alarm(np.random.default_rng(9), 5000, spoil) <= 2500


def test_new_categories_are_found() -> None:
    found = watch("x", [np.array([[b"red"], [b"blue"]] * 5000, object)])
    assert found is not None
    feature = found.features[0]
    known, new = after(Evidence(), feature, (125, 125, 0, 0), 1, RULES), Evidence()
    for _ in range(4):
        new = after(new, feature, (120, 120, 0, 10), 1, RULES)
    assert not known.alarmed and known.log < 0 and new.alarmed


def test_an_alarm_goes_on_until_nothing_speaks_for_it() -> None:
    feature = reference(np.random.default_rng(10)).features[0]
    rng, cells = np.random.default_rng(11), cells_of(feature)
    evidence = Evidence()
    for _ in range(3):
        evidence = after(evidence, feature, cells.count(rng.normal(2, size=250)).tolist(), 1, RULES)
    windows = 0
    while evidence.alarmed and windows < 200:
        evidence = after(evidence, feature, cells.count(rng.normal(size=250)).tolist(), 1, RULES)
        windows += 1
    assert 20 < windows < 200
    assert evidence.log <= 0
