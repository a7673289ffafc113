"""Sorts the values of a feature into the cells of its reference."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from app.core.drift.reference import Feature

NAN, FAR_BELOW, BELOW, FIRST = 0, 1, 2, 3
"""Cells of numbers; `ABOVE` and `FAR_ABOVE` are the last two."""
ABOVE, FAR_ABOVE = -2, -1
OTHER, NEW = -2, -1
"""Cells of categories behind those of their own."""
FAR: Final = 0.1
"""Parts of the reference's range by which a number may be outside it without being far outside."""

Numbers = npt.NDArray[np.float64]
Column = Numbers | Sequence[str]
"""The values of a feature, one for each row: numbers, or categories as text."""
Counts = npt.NDArray[np.int64]
"""Rows by cell."""


class NumberCells:
    """Counts numbers: all rows of a column at once."""

    def __init__(self, feature: Feature) -> None:
        edges = np.array(feature.edges)
        margin = FAR * (edges[-1] - edges[0])
        self._bounds = np.concatenate(([edges[0] - margin], edges, [edges[-1] + margin]))
        self._size = len(feature.counts)

    def count(self, column: Column) -> Counts:
        """Return how many rows each cell has."""
        numbers = np.asarray(column, np.float64)
        found = np.searchsorted(self._bounds, numbers, "right")
        found += 1
        found[np.isnan(numbers)] = NAN
        return np.bincount(found, minlength=self._size)


class CategoryCells:
    """Counts categories."""

    def __init__(self, feature: Feature) -> None:
        size = len(feature.counts)
        self._cells = dict.fromkeys(feature.known, size + OTHER)
        self._cells |= {value: number for number, value in enumerate(feature.values)}
        self._size = size

    def count(self, column: Column) -> Counts:
        """Return how many rows each cell has."""
        cell, new = self._cells.get, self._size + NEW
        return np.bincount([cell(each, new) for each in column], minlength=self._size)


def cells_of(feature: Feature) -> NumberCells | CategoryCells:
    """Return what counts a feature."""
    return CategoryCells(feature) if feature.is_category else NumberCells(feature)


def strays(feature: Feature, counts: Sequence[int]) -> dict[str, int]:
    """Return the rows that need no statistics to be remarkable, by kind: `nan`, `range` and `new`."""
    if feature.is_category:
        return {"new": int(counts[NEW])}
    return {"nan": int(counts[NAN]), "range": int(counts[FAR_BELOW] + counts[FAR_ABOVE])}


def plain(numbers: npt.NDArray[Any]) -> list[str]:
    """Return numbers as categories: whole ones without a fraction."""
    return [f"{number:.17g}" for number in numbers.tolist()]
