"""Counts the rows of one version by the cells of its reference, many at a time."""

import random
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np

from app.core.drift.cells import Column, cells_of
from app.core.drift.counts import RowCounts
from app.core.drift.extraction import Rows, columns
from app.core.drift.reference import VersionReference, WatchedTensor
from app.core.errors import InferError
from app.core.tensors import RegionSlice, Tensor

GROUP: Final = 512
"""Rows that are counted in one pass of numpy."""
_MOST_LARGE: Final = 4
"""Rows of a request of tensors that are not kept: a picture takes up to 0.1 ms."""
_KEPT: Final = ("numbers", "classes")
"""Kinds whose rows are kept as they are until there is a group; they are small."""


class _Watch:
    """One tensor: its rows that wait, and its counts."""

    def __init__(self, watched: WatchedTensor) -> None:
        self.watched = watched
        self._cells = [cells_of(feature) for feature in watched.features]
        self._rows = list[Rows]()
        self._columns = list[list[Column]]()
        self.waiting = 0
        self.clear()

    def clear(self) -> None:
        self.counts = [np.zeros(len(feature.counts), np.int64) for feature in self.watched.features]
        self.zeros = self.shapes = self.confidence = self.classified = 0

    def add(self, rows: Rows) -> None:
        """Take rows, whose memory may change afterwards."""
        watched = self.watched
        if watched.width and rows.size != watched.width * len(rows):
            self.shapes += len(rows)
            return
        if watched.kind in _KEPT:
            self._rows.append(rows.reshape(len(rows), -1).copy())
        elif (found := columns(watched, rows)) is not None:
            self._columns.append(found)
            if rows.dtype != object:
                self.zeros += _zeros(rows)
        self.waiting += len(rows)

    def count(self) -> None:
        """Count the rows that wait."""
        if self._rows:
            rows = np.concatenate(self._rows)
            self.zeros += _zeros(rows)
            self._columns.append(columns(self.watched, rows) or [])
        for found in self._columns:
            for number, column in enumerate(found):
                self.counts[number] += self._cells[number].count(column)
            if self.watched.kind == "classes":
                self._add_confidence(np.asarray(found[1], np.float64))
        self._rows, self._columns, self.waiting = [], [], 0

    def _add_confidence(self, shares: Rows) -> None:
        known = shares[np.isfinite(shares)].clip(0, 1)
        self.confidence += int(np.rint(known * 1e6).astype(np.int64).sum())
        self.classified += len(known)


def _zeros(rows: Rows) -> int:
    return int((~rows.reshape(len(rows), -1).any(axis=1)).sum()) if rows.size else 0


class RowCounter:
    """Counts the sampled rows of one version; every call takes a bounded time."""

    def __init__(self, reference: VersionReference) -> None:
        self._inputs = {tensor.name: _Watch(tensor) for tensor in reference.inputs.tensors}
        outputs = reference.outputs.tensors if reference.outputs else ()
        self._outputs = {tensor.name: _Watch(tensor) for tensor in outputs}
        self._rows = 0

    def add(self, inputs: Iterable[Tensor], outputs: Iterable[Tensor], rows: int, batched: bool) -> None:
        """Add rows of a request, those at random if it has more.

        Args:
            inputs, outputs: tensors whose memory is valid until this returns.
            rows: how many are taken.
            batched: whether the first dimension of the tensors is that of rows; else a request is one.
        """
        chosen = dict[int, list[int]]()
        self._rows += rows
        for watches, tensors in ((self._inputs, inputs), (self._outputs, outputs)):
            for tensor in tensors:
                watch = watches.get(tensor.name)
                table = None if watch is None else _rows_of(tensor, batched)
                if watch is None or table is None:
                    continue
                if (size := len(table)) > rows:  # the same rows of all tensors
                    table = table[chosen.setdefault(size, random.sample(range(size), rows))]
                watch.add(table if watch.watched.kind in _KEPT else table[:_MOST_LARGE])
        self._count_one()

    def _count_one(self) -> None:
        """Count the group of one tensor, if there is one: not all of them in one turn of the loop."""
        for watch in self._watches():
            if watch.waiting >= GROUP:
                watch.count()
                break

    def take(self) -> RowCounts:
        """Return what was counted since the last time, and count from zero."""
        watches = list(self._watches())
        for watch in watches:
            watch.count()
        taken = RowCounts(
            self._rows,
            [counts.tolist() for watch in watches for counts in watch.counts],
            {watch.watched.name: watch.zeros for watch in watches if watch.zeros},
            {watch.watched.name: watch.shapes for watch in watches if watch.shapes},
            sum(watch.confidence for watch in watches),
            sum(watch.classified for watch in watches),
        )
        self._rows = 0
        for watch in watches:
            watch.clear()
        return taken

    def _watches(self) -> Iterator[_Watch]:
        yield from self._inputs.values()
        yield from self._outputs.values()


def _rows_of(tensor: Tensor, batched: bool) -> Rows | None:
    """Return a tensor as rows; None if its bytes are elsewhere, or not what datatype and shape say."""
    if type(tensor.data) is RegionSlice or not len(tensor.data) or min(tensor.shape, default=0) < 0:
        return None
    try:
        array: Any = tensor.array()
    except (InferError, ValueError):
        return None
    if tensor.datatype == "BF16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    if not batched:
        return np.asarray(array[None])
    return np.asarray(array) if array.ndim and len(array) else None
