"""Makes the reference of tensors out of rows that were recorded. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from app.core.drift.cells import Column, Numbers, cells_of, plain
from app.core.drift.extraction import MOST_COLUMNS, Rows, columns, names
from app.core.drift.reference import MOST_FEATURES, Feature, Side, WatchedTensor

BINS: Final = 16
_MOST_VALUES: Final = 64
_MOST_KNOWN: Final = 1024
_FEW: Final = 32
"""Different whole numbers that are taken for categories."""
_MOST_CLASSES: Final = 1024
_REPEATS: Final = 20
"""Rows for each different text from which texts are taken for labels."""
_MOST: Final = 1e300


def side(
    tensors: Mapping[str, Sequence[Rows]],
    made: float,
    source: str,
    classes: Iterable[str] = (),
    content: str = "",
) -> tuple[Side, list[str]]:
    """Return the reference of some tensors, and the names of those that are left out.

    Args:
        tensors: batches of rows by name, all with as many rows: see `Rows`.
        made, source, content: see `Side`.
        classes: tensors whose values are known to become shares of classes.
    """
    found, left, features = list[WatchedTensor](), list[str](), 0
    for name, batches in tensors.items():
        watched = watch(name, batches, name in classes)
        features += len(watched.features) if watched else 0
        if watched is None or features > MOST_FEATURES:
            left.append(name)
        else:
            found.append(watched)
    rows = max((sum(map(len, batches)) for batches in tensors.values()), default=0)
    return Side(rows, made, source, tuple(found), content), left


def watch(name: str, batches: Sequence[Rows], is_classes: bool = False) -> WatchedTensor | None:
    """Return how a tensor is watched, and what it looks like; None if nothing can be told of it."""
    plan = _plan(name, batches, is_classes)
    if plan is None:
        return None
    parts = [found for batch in batches if len(batch) and (found := columns(plan, batch)) is not None]
    if not parts:
        return None
    joined = [_joined(part) for part in zip(*parts, strict=True)]
    named = zip(names(plan), joined, strict=True)
    features = tuple(_feature(each, column, plan.kind == "numbers") for each, column in named)
    return msgspec.structs.replace(plan, features=features)


def _joined(parts: Sequence[Column]) -> Column:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return [text for part in parts for text in part]


def _plan(name: str, batches: Sequence[Rows], is_classes: bool) -> WatchedTensor | None:
    """Choose the kind of a tensor by its rows."""
    some = [batch for batch in batches if batch.size]
    if not some:
        return None
    shapes = {batch.shape[1:] for batch in some}
    shape, width = some[0].shape[1:], int(np.prod(some[0].shape[1:]))
    if some[0].dtype == object:
        return WatchedTensor(name, "labels" if _repeats(some) else "text", ())
    width = width if len({int(np.prod(each)) for each in shapes}) == 1 else 0
    if 1 < width <= _MOST_CLASSES and some[0].dtype.kind == "f" and (is_classes or _sums_to_one(some)):
        return WatchedTensor(name, "classes", (), width, softmax=not _sums_to_one(some))
    if 0 < width <= MOST_COLUMNS:
        return WatchedTensor(name, "numbers", (), width)
    if channels := _channels(shapes):
        return WatchedTensor(name, "picture", (), channels=channels)
    is_vector = width and len([size for size in shape if size > 1]) == 1 and some[0].dtype.kind == "f"
    return WatchedTensor(name, "vector" if is_vector else "summary", (), width)


def _channels(shapes: Iterable[tuple[int, ...]]) -> tuple[int, int] | None:
    """Return the axis of the channels of pictures, and their number; None if these are no pictures."""
    for axis in (0, 2):
        sizes = {shape[axis] if len(shape) == 3 else 0 for shape in shapes}
        if len(sizes) == 1 and 1 <= min(sizes) <= 4:
            return axis, min(sizes)
    return None


def _repeats(batches: Sequence[Rows]) -> bool:
    if any(batch.size != len(batch) for batch in batches):
        return False
    texts = {text for batch in batches for text in batch.reshape(-1).tolist()}
    return len(texts) * _REPEATS <= sum(map(len, batches)) and len(texts) <= _MOST_KNOWN


def _sums_to_one(batches: Sequence[Rows]) -> bool:
    tables = [batch.reshape(len(batch), -1).astype(np.float64) for batch in batches]
    good = sum(int(((abs(t.sum(axis=1) - 1) < 0.01) & (t.min(axis=1) >= 0)).sum()) for t in tables)
    return good >= 0.99 * sum(map(len, tables))


def _feature(name: str, column: Column, as_they_are: bool) -> Feature:
    if isinstance(column, np.ndarray) and not (as_they_are and _is_whole(column)):
        return _of_numbers(name, column)
    return _of_categories(name, plain(column) if isinstance(column, np.ndarray) else list(column))


def _is_whole(column: Numbers) -> bool:
    """Return whether numbers are of so few kinds that they are categories: no measurement is."""
    if not np.isfinite(column).all() or (column != np.floor(column)).any():
        return False
    return len(np.unique(column)) <= min(_FEW, len(column) / _REPEATS)


def _of_numbers(name: str, column: Numbers) -> Feature:
    finite = column[np.isfinite(column)]
    if not len(finite):
        finite = np.zeros(1)
    shares = np.arange(BINS) / BINS
    finite = finite.clip(-_MOST, _MOST)  # JSON has no infinity, nor has the range of more than that an end
    edges = np.unique(np.quantile(finite, shares, method="higher"))
    edges = np.append(edges, np.nextafter(finite.max(), np.inf))
    feature = Feature(name, (0,) * (len(edges) + 4), tuple(edges.tolist()))
    counts = tuple(cells_of(feature).count(column).tolist())
    with np.errstate(over="ignore", invalid="ignore"):
        moments = np.nan_to_num([finite.mean(), finite.std()])
    return msgspec.structs.replace(
        feature, counts=counts, mean=moments[0].item(), deviation=moments[1].item()
    )


def _of_categories(name: str, column: Sequence[str]) -> Feature:
    frequent = [value for value, _ in sorted(Counter(column).items(), key=lambda each: (-each[1], each[0]))]
    values, known = frequent[:_MOST_VALUES], frequent[_MOST_VALUES : _MOST_VALUES + _MOST_KNOWN]
    feature = Feature(name, (0,) * (len(values) + 2), (), tuple(values), tuple(known))
    return msgspec.structs.replace(feature, counts=tuple(cells_of(feature).count(column).tolist()))
