"""Simulates the rule for drift beside those that are usual: false alarms, and rows until a change is found.

    python -m tests.long.drift                 # 200 unchanged runs of 50,000 rows, 200 with a change
    python -m tests.long.drift --runs 20

The rule goes the way of the server: `RowCounter`s of two ingresses count rows, and a `VersionDrift` adds and
tests. Ends with status 1 where the rule keeps less than docs/operate/drift.md promises.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from statistics import median

import numpy as np

from app.core.drift.building import side
from app.core.drift.cells import Numbers, cells_of
from app.core.drift.counts import RowCounts
from app.core.drift.distances import distances
from app.core.drift.evidence import WINDOW
from app.core.drift.reference import Feature, Reference, VersionReference
from app.core.drift.spec import DriftSpec
from app.core.tensors import Tensor
from app.drift.counter import RowCounter
from deployments.drift.version import VersionDrift

FEATURES, REFERENCE_ROWS = 13, 10_000
A_A_ROWS, SHIFT, WITHIN = 50_000, 0.25, 3_500
Rule = Callable[[Feature, list[int]], bool]
USUAL: dict[str, Rule] = {
    "PSI > 0.1 of any feature": lambda feature, counts: distances(feature, counts).psi > 0.1,
    "PSI > 0.2 of any feature": lambda feature, counts: distances(feature, counts).psi > 0.2,
    "KS, p < 0.05 of any feature": lambda feature, counts: _ks(feature, counts) > 1.358,
}


def _ks(feature: Feature, counts: list[int]) -> float:
    """Return the statistic times the root of the rows that it is of."""
    ours, theirs = sum(counts), sum(feature.counts)
    return (distances(feature, counts).ks or 0.0) * math.sqrt(ours * theirs / (ours + theirs))


class Run:
    """A model with a reference, and two ingresses that count for it."""

    def __init__(self, rng: np.random.Generator, shift: float) -> None:
        self._rng, self._shift = rng, shift
        inputs, _ = side({"x": [rng.normal(size=(REFERENCE_ROWS, FEATURES))]}, 0.0, "normal")
        self.reference: VersionReference = Reference(inputs).of(1)
        self._ingresses = [RowCounter(self.reference), RowCounter(self.reference)]
        self._cells = [cells_of(feature) for feature in self.reference.features]
        self.drift = VersionDrift("d", self.reference, DriftSpec())

    def window(self) -> Numbers:
        """Send and test the rows of a window; return them."""
        rows = self._rng.normal(size=(WINDOW, FEATURES))
        rows[:, 3] += self._shift
        half = WINDOW // 2
        for counter, part in zip(self._ingresses, (rows[:half], rows[half:]), strict=True):
            counter.add((Tensor.from_array("x", part),), (), len(part), True)
        self.drift.add(sum((counter.take() for counter in self._ingresses), RowCounts()))
        self.drift.test(1.0)
        return rows

    def usual(self, rows: Numbers) -> set[str]:
        """Return the usual rules that alarm at a window."""
        found = set()
        for number, feature in enumerate(self.reference.features):
            counts = self._cells[number].count(rows[:, number]).tolist()
            found |= {name for name, rule in USUAL.items() if name not in found and rule(feature, counts)}
        return found


def unchanged(rng: np.random.Generator) -> set[str]:
    """Return the rules that alarm at some window while nothing changes."""
    run, found = Run(rng, 0.0), set[str]()
    for _ in range(A_A_ROWS // WINDOW):
        rows = run.window()
        if len(found - {"ours"}) < len(USUAL):
            found |= run.usual(rows)
        if run.drift.since:
            found.add("ours")
    return found


def changed(rng: np.random.Generator) -> int:
    """Return the rows after which a shift of one feature is found."""
    run = Run(rng, SHIFT)
    for window in range(1, 100):
        run.window()
        if run.drift.since:
            return window * WINDOW
    return sys.maxsize


def main() -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(description="Simulate the rule for drift beside the usual ones.")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    alarms = [unchanged(rng) for _ in range(options.runs)]
    print(f"runs of {A_A_ROWS:,} unchanged rows of {FEATURES} features with an alarm, of {options.runs}:")
    counted = {name: sum(name in found for found in alarms) for name in ("ours", *USUAL)}
    for name, number in counted.items():
        print(f"  {name}: {number}")
    rows = sorted(changed(rng) for _ in range(options.runs))
    late = rows[math.ceil(0.95 * len(rows)) - 1]
    within = sum(each <= WITHIN for each in rows)
    print(
        f"rows until {SHIFT:g} deviations in one feature are found: {median(rows):,.0f}, 95% within {late:,}"
    )
    print(f"  within {WITHIN:,}: {within} of {options.runs}")
    return int(counted["ours"] > options.runs / 50 or within < 0.9 * options.runs)


if __name__ == "__main__":
    sys.exit(main())
