"""The drift of one version: sums of what ingresses count, tested window by window. Pure."""

from collections.abc import Iterator
from typing import Final

import msgspec

from app.core.drift.cells import strays
from app.core.drift.counts import FeatureFigures, RowCounts, VersionFigures
from app.core.drift.distances import Distances, distances
from app.core.drift.evidence import WINDOW, Evidence, after, normalised
from app.core.drift.reference import VersionReference
from app.core.drift.spec import DriftSpec
from app.core.drift.status import DriftStatus, FeatureStatus, confidence

RECENT: Final = 10_000
"""Rows after which those shown as recent are begun anew; those before are shown until there are more."""
WORST: Final = 8
"""Features that metrics show by name."""


class VersionState(msgspec.Struct, frozen=True):
    """What has come of the rows of a version, see `VersionDrift`."""

    evidence: list[Evidence]
    pending: RowCounts
    recent: RowCounts
    before: RowCounts
    rows: int
    quality: dict[str, dict[str, int]]
    since: float


class VersionDrift:
    """Adds up the rows of one version since its reference is used.

    Attributes:
        digest: of the text of the reference, and the version.
        rules: how it is watched.
        rows: that were counted.
        since: when the alarm began, in Unix seconds; 0 for none.
    """

    def __init__(self, digest: str, reference: VersionReference, rules: DriftSpec) -> None:
        self.digest, self.reference, self.rules = digest, reference, rules
        self._features = reference.features
        self._tensors = [tensor.name for tensor in reference.tensors for _ in tensor.features]
        self._evidence = [Evidence() for _ in self._features]
        self._pending = self._recent = self._before = RowCounts()
        self.rows = 0
        self._quality: dict[str, dict[str, int]] = {}
        self.since = 0.0

    @property
    def state(self) -> VersionState:
        """What has come of the rows so far."""
        counts = self._pending, self._recent, self._before
        quality = {tensor: dict(kinds) for tensor, kinds in self._quality.items()}
        return VersionState(self._evidence, *counts, self.rows, quality, self.since)

    def go_on(self, state: VersionState) -> bool:
        """Go on from the state of another one of the same reference; return whether it is of that."""
        counts = state.pending, state.recent, state.before
        if len(state.evidence) != len(self._features) or not all(map(self._fits, filter(_any, counts))):
            return False
        self._evidence, self.rows, self.since = state.evidence, state.rows, state.since
        self._pending, self._recent, self._before = counts
        self._quality = state.quality
        return True

    def _fits(self, counts: RowCounts) -> bool:
        return [len(cells) for cells in counts.cells] == [len(each.counts) for each in self._features]

    def add(self, counts: RowCounts) -> bool:
        """Add what an ingress has counted; return whether it is by this reference."""
        if not self._fits(counts):
            return False
        self._pending += counts
        self.rows += counts.rows
        self._count_quality(counts)
        return True

    def _count_quality(self, counts: RowCounts) -> None:
        for feature, tensor, cells in zip(self._features, self._tensors, counts.cells, strict=True):
            for kind, number in strays(feature, cells).items():
                self._add_quality(tensor, kind, number)
        for kind, by_tensor in (("zeros", counts.zeros), ("shape", counts.shapes)):
            for tensor, number in by_tensor.items():
                self._add_quality(tensor, kind, number)

    def _add_quality(self, tensor: str, kind: str, number: int) -> None:
        if number:
            kinds = self._quality.setdefault(tensor, {})
            kinds[kind] = kinds.get(kind, 0) + number

    def test(self, now: float) -> bool:
        """Test what has come since the last time, if it is a window; return whether the alarm has changed."""
        window = self._pending
        if window.rows < WINDOW:
            return False
        self._pending = RowCounts()
        self._recent += window
        if self._recent.rows > RECENT:
            self._before, self._recent = self._recent, RowCounts()
        rules, number = (self.rules.tolerance, self.rules.alpha), len(self._features)
        tested = zip(self._evidence, self._features, window.cells, strict=True)
        self._evidence = [after(*each, number, rules) for each in tested]
        was, alarmed = self.since, any(each.alarmed for each in self._evidence)
        self.since = (was or now) if alarmed else 0.0
        return bool(was) != alarmed

    @property
    def alarms(self) -> list[str]:
        """The names of the features that have changed."""
        found = zip(self._features, self._evidence, strict=True)
        return [feature.name for feature, evidence in found if evidence.alarmed]

    def figures(self, model: str, version: int) -> VersionFigures:
        """Return what metrics show."""
        number = len(self._features)
        order = sorted(range(number), key=lambda each: -self._evidence[each].log)
        worst = [self._figures(each, number) for each in order[:WORST]]
        return VersionFigures(
            model,
            version,
            self.rows,
            self.reference.made,
            bool(self.since),
            worst[0].evidence if worst else 0.0,
            1 / self.rules.alpha,
            tuple(worst),
            {tensor: dict(kinds) for tensor, kinds in self._quality.items()},
        )

    def _figures(self, number: int, features: int) -> FeatureFigures:
        feature, found = self._features[number], self._distances(number)
        evidence = normalised(self._evidence[number], features)
        if found is None:
            return FeatureFigures(feature.name, evidence)
        return FeatureFigures(feature.name, evidence, found.psi, found.js, found.wasserstein, found.ks)

    def _shown(self) -> RowCounts:
        return self._before + self._recent

    def _distances(self, number: int) -> Distances | None:
        cells = self._shown().cells
        return distances(self._features[number], cells[number]) if cells and sum(cells[number]) else None

    def status(self, model: str, version: int) -> DriftStatus:
        """Return what the API shows."""
        shown, inputs = self._shown(), self.reference.inputs
        return DriftStatus(
            model,
            version,
            self.rules,
            inputs.made,
            inputs.source,
            inputs.rows,
            self.rows,
            shown.rows,
            tuple(self._states(shown)),
            self.since,
            confidence(shown),
            self._quality,
        )

    def _states(self, shown: RowCounts) -> Iterator[FeatureStatus]:
        outputs = sum(len(tensor.features) for tensor in self.reference.inputs.tensors)
        for number, feature in enumerate(self._features):
            evidence = self._evidence[number]
            cells = shown.cells[number] if shown.cells else [0] * len(feature.counts)
            yield FeatureStatus(
                feature,
                self._tensors[number],
                number >= outputs,
                tuple(cells),
                normalised(evidence, len(self._features)),
                evidence.alarmed,
                self._distances(number),
            )


def _any(counts: RowCounts) -> bool:
    return bool(counts.cells)
