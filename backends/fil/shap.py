"""Shapley values of forests, exact: how much each feature adds to an answer, before the postprocessor.

They are those of path-dependent TreeSHAP, which XGBoost (`pred_contribs`) and LightGBM (`pred_contrib`)
compute: a feature that is unknown goes to both children of a node, in the proportion of the training rows
that did.

The way to a leaf of value v tests some features. With the features of a set S known, it adds v times the
product, over these features, of o (1 if the row passes the feature's tests, else 0) for those in S and of z
(the share of rows that pass) for the others. The Shapley value of feature i in such a product is

    v (o_i - z_i) * integral over t from 0 to 1 of the product over j != i of (z_j (1 - t) + o_j t),

because a Shapley value is a mean over the position t at which a feature becomes known. That is a polynomial
of t, which Gauss-Legendre quadrature integrates exactly.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import treelite

from app.core.errors import unsupported
from backends.fil.forest import GREATER, GREATER_EQUAL, LESS, LESS_EQUAL, Array, Categories, Forest

_MAX_TESTS: Final = 20_000_000
_CHUNK: Final = 1 << 20
"""Numbers of an array of a step: its memory stays below some 8 MiB each."""
_COMPARE: Final[Mapping[int, Any]] = {
    1: np.equal,
    LESS: np.less,
    LESS_EQUAL: np.less_equal,
    GREATER: np.greater,
    GREATER_EQUAL: np.greater_equal,
}
_MAX_CATEGORY: Final = 1 << 24


class _Ways(NamedTuple):
    """Ways to leaves that test the same number of features.

    Attributes:
        tests: of all ways, one way after the other, each ordered by feature: 2 * node, + 1 for a way to the
            right.
        starts: where in `tests` those of each feature of each way begin.
        share: z, float64[ways, features].
        columns: features, int64[ways, features].
        leaves: int64[ways].
        points, weights: of the quadrature.
    """

    tests: Array
    starts: Array
    share: Array
    columns: Array
    leaves: Array
    points: Array
    weights: Array


class Explainer:
    """Computes Shapley values of a forest.

    Raises:
        InferError: UNSUPPORTED for a model without statistics of its nodes, or of too many tests.
    """

    def __init__(self, model: treelite.Model, forest: Forest) -> None:
        self._forest = forest
        self._scale = 1 / forest.trees_of_class() if forest.average else np.ones(forest.classes)
        self._ways = list(_grouped(forest, _cover(model, forest)))
        expected = np.zeros(forest.classes)
        for ways in self._ways:
            values = forest.values[ways.leaves] * ways.share.prod(axis=1)[:, None]
            _add_values(forest, expected[None], ways.leaves, values[None])
        self._expected = expected * self._scale + forest.base

    def __call__(self, rows: Array) -> Array:
        """Return float32[n, classes, features + 1] for float32[n, features]; the last is of no feature."""
        tests = 2 * len(self._forest.left)
        step = max(1, _CHUNK // max(tests, max(ways.share.size for ways in self._ways)))
        parts = [self._explain(rows[start : start + step]) for start in range(0, len(rows), step)]
        return np.concatenate(parts) if parts else np.zeros(self._shape(0), np.float32)

    def _shape(self, rows: int) -> tuple[int, int, int]:
        return rows, self._forest.classes, self._forest.features + 1

    def _explain(self, rows: Array) -> Array:
        answer = np.zeros(self._shape(len(rows)))
        passes = passed(self._forest, rows)
        for ways in self._ways:
            if ways.share.size:
                self._add(answer, ways, passes)
        answer[:, :, :-1] *= self._scale[:, None]
        answer[:, :, -1] = self._expected
        return answer.astype(np.float32)

    def _add(self, answer: Array, ways: _Ways, passes: Array) -> None:
        known = np.logical_and.reduceat(passes[:, ways.tests], ways.starts, axis=1)
        known = known.reshape(len(answer), *ways.share.shape)
        change = known - ways.share
        added = np.zeros(change.shape)
        for point, weight in zip(ways.points, ways.weights, strict=True):
            factor = ways.share * (1 - point) + known * point
            added += weight * factor.prod(axis=2, keepdims=True) / factor
        added *= change
        values = self._forest.values[ways.leaves]
        for number in range(values.shape[1]):
            self._scatter(answer, ways, added * values[:, number, None], number)

    def _scatter(self, answer: Array, ways: _Ways, added: Array, number: int) -> None:
        """Add up what the ways give to each feature, for value `number` of their leaves."""
        width = self._forest.features + 1
        alone = self._forest.class_of_tree[self._forest.tree[ways.leaves]]
        target = np.where(alone < 0, number, alone)[:, None] * width + ways.columns
        for row, values in zip(answer, added, strict=True):
            flat = np.bincount(target.ravel(), values.ravel(), minlength=row.size)
            row += flat.reshape(row.shape)


def passed(forest: Forest, rows: Array) -> Array:
    """Return whether each row would pass each node to the left (2 * node) and right (2 * node + 1), bool."""
    features = np.maximum(forest.feature, 0)
    values = rows[:, features].astype(np.float64)
    left = np.zeros(values.shape, bool)
    for comparison, compare in _COMPARE.items():
        nodes = forest.comparison == comparison
        left[:, nodes] = compare(values[:, nodes], forest.threshold[nodes])
    for node, categories in forest.categories.items():
        left[:, node] = _in_categories(values[:, node], categories)
    left = np.where(np.isnan(values), forest.default_left, left)
    return np.stack([left, ~left], axis=2).reshape(len(rows), -1)


def _in_categories(values: Array, categories: Categories) -> Array:
    """Return whether values go to the left, as treelite has it: they count without their fraction."""
    valid = (values >= 0) & (values <= _MAX_CATEGORY)
    listed = np.isin(np.where(valid, values, 0).astype(np.uint32), categories.listed) & valid
    return ~listed if categories.to_right else listed


def _cover(model: treelite.Model, forest: Forest) -> Array:
    """Return how many training rows came to each node, or the sum of their Hessians, as the model has it."""
    for name in ("sum_hess", "data_count"):
        parts = []
        for number in range(len(forest.roots)):
            field = model.get_tree_accessor(number).get_field
            if len(field(name)) and field(f"{name}_present").all():
                parts.append(field(name).astype(np.float64))
        found = np.concatenate(parts) if parts else np.zeros(0)
        if len(found) == len(forest.left):
            return found
    raise unsupported("Model does not have node statistics.")


def _grouped(forest: Forest, cover: Array) -> Iterator[_Ways]:
    """Return the ways to all leaves, those of the same number of features together."""
    way, tests = _tests(forest)
    node = tests >> 1
    child = np.where(tests & 1, forest.right[node], forest.left[node])
    share = np.clip(cover[child] / np.maximum(cover[node], 1e-300), 1e-30, 1)
    feature = forest.feature[node]
    order = np.lexsort((feature, way))
    way, tests, share, feature = way[order], tests[order], share[order], feature[order]
    new = np.ones(len(way), bool)
    new[1:] = (way[1:] != way[:-1]) | (feature[1:] != feature[:-1])
    starts = np.flatnonzero(new)
    shares = np.multiply.reduceat(share, starts) if len(starts) else share
    ends = np.append(starts[1:], len(way))
    counts = np.bincount(way[starts], minlength=len(forest.leaves))
    for count in np.unique(counts):
        wanted = counts[way[starts]] == count
        lengths = (ends - starts)[wanted]
        first = np.cumsum(lengths) - lengths
        taken = np.repeat(starts[wanted] - first, lengths) + np.arange(lengths.sum())
        points, weights = np.polynomial.legendre.leggauss(max(1, (int(count) + 1) // 2))
        yield _Ways(
            tests[taken],
            first,
            shares[wanted].reshape(-1, count) if count else np.ones((int((counts == 0).sum()), 0)),
            feature[starts[wanted]].reshape(-1, count) if count else np.zeros((0, 0), np.int64),
            forest.leaves[counts == count],
            (points + 1) / 2,
            weights / 2,
        )


def _tests(forest: Forest) -> tuple[Array, Array]:
    """Return the tests on the ways to all leaves: number of the leaf, and 2 * node (+ 1 to the right)."""
    parent = np.full(len(forest.left), -1)
    inner = np.flatnonzero(forest.left >= 0)
    parent[forest.left[inner]] = 2 * inner
    parent[forest.right[inner]] = 2 * inner + 1
    ways, tests, total = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 0
    way, above = np.arange(len(forest.leaves)), parent[forest.leaves]
    while len(way):
        way, above = way[above >= 0], above[above >= 0]
        total += len(way)
        if total > _MAX_TESTS:
            raise unsupported(f"treeshap_output: more than {_MAX_TESTS} tests are on the ways to the leaves")
        ways.append(way)
        tests.append(above)
        above = parent[above >> 1]
    return np.concatenate(ways), np.concatenate(tests)


def _add_values(forest: Forest, answer: Array, leaves: Array, values: Array) -> None:
    """Add values of leaves, float64[n, leaves, width], to answers, float64[n, classes]."""
    alone = forest.class_of_tree[forest.tree[leaves]]
    for number in range(values.shape[2]):
        target = np.where(alone < 0, number, alone)
        for row, value in zip(answer, values[:, :, number], strict=True):
            row += np.bincount(target, value, minlength=len(row))
