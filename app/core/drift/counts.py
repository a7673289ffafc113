"""What ingresses count of the rows of models, and exchange with the manager. Counts add exactly."""

from collections.abc import Sequence
from typing import Final

import msgspec

from app.core.drift.reference import VersionReference

PERIOD_S: Final = 10.0
"""Time from one report of an ingress to the next."""
MOST_WATCHED: Final = 256
"""Versions that are counted at once."""


class RowCounts(msgspec.Struct, omit_defaults=True):
    """Rows of one version, by the cells of its reference.

    Attributes:
        rows: how many.
        cells: of each feature, in the order of the reference; empty before the first row.
        zeros, shapes: by tensor, rows that are all zeros, and rows of another shape than the reference's.
        confidence: the sum of the greatest shares of classes, in millionths; `classified` rows have one.
    """

    rows: int = 0
    cells: list[list[int]] = []
    zeros: dict[str, int] = {}
    shapes: dict[str, int] = {}
    confidence: int = 0
    classified: int = 0

    def __add__(self, other: "RowCounts") -> "RowCounts":
        if not (self.cells and other.cells):
            cells = self.cells or other.cells
        else:
            cells = [_sum(*pair) for pair in zip(self.cells, other.cells, strict=True)]
        return RowCounts(
            self.rows + other.rows,
            cells,
            joined(self.zeros, other.zeros),
            joined(self.shapes, other.shapes),
            self.confidence + other.confidence,
            self.classified + other.classified,
        )


def _sum(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip(one, other, strict=True)]


def joined(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    """Return the sums of two counters."""
    return {key: one.get(key, 0) + other.get(key, 0) for key in (*one, *(other.keys() - one.keys()))}


class VersionCounts(msgspec.Struct):
    """The rows of one version since the last report, by the reference of this digest."""

    model: str
    version: int
    reference: str
    counts: RowCounts


class DriftReport(msgspec.Struct, omit_defaults=True):
    """What one ingress counted since its last report; `number` rises by one, so that none is added twice.

    `known` are the digests of the references that it has.
    """

    ingress: str
    number: int
    versions: list[VersionCounts] = []
    known: list[str] = []


class KnownReference(msgspec.Struct, frozen=True):
    """The reference of a version; `reference` is None where the ingress that asks has this digest."""

    model: str
    version: int
    digest: str
    reference: VersionReference | None = None


class FeatureFigures(msgspec.Struct, frozen=True, omit_defaults=True):
    """One feature as metrics show it."""

    name: str
    evidence: float
    psi: float = 0.0
    js: float = 0.0
    wasserstein: float | None = None
    ks: float | None = None


class VersionFigures(msgspec.Struct, frozen=True, omit_defaults=True):
    """One version as metrics show it: its worst features, and counts of remarkable rows.

    Attributes:
        evidence: the greatest of any feature; an alarm from 1 / alpha on.
        level: 1 / alpha.
        quality: rows by tensor, then kind.
    """

    model: str
    version: int
    rows: int
    made: float
    alarmed: bool
    evidence: float
    level: float
    worst: tuple[FeatureFigures, ...] = ()
    quality: dict[str, dict[str, int]] = {}


class DriftAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the manager answers to a report: what is to be counted, and the figures of the whole server."""

    references: tuple[KnownReference, ...] = ()
    figures: tuple[VersionFigures, ...] = ()
