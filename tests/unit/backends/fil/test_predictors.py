"""Trees as ONNX, used only where they agree with treelite, and Shapley values by their definition."""

import logging
import sys
from itertools import combinations
from math import factorial
from typing import Any

import numpy as np
import pytest
import treelite
import treelite.sklearn
from sklearn import datasets, ensemble

from backends.fil import onnx_trees
from backends.fil.forest import Forest, read_forest
from backends.fil.onnx_trees import OnnxTrees, float32_thresholds
from backends.fil.predictors import Gtil, agree, fastest, probes
from backends.fil.shap import Explainer

Array = Any


@pytest.fixture(scope="module")
def wine() -> tuple[treelite.Model, Forest]:
    """A forest over four features, whose leaves have a share of each of three classes."""
    rows, wines = datasets.load_wine(return_X_y=True)
    forest = ensemble.RandomForestClassifier(5, max_depth=4, random_state=0).fit(rows[:, 6:10], wines)
    model = treelite.sklearn.import_model(forest)
    return model, read_forest(model)


def test_thresholds_of_float32_divide_rows_as_those_of_float64(wine: tuple[treelite.Model, Forest]) -> None:
    _, forest = wine
    inner = forest.left >= 0
    exact, rounded = forest.threshold[inner], float32_thresholds(forest)[inner]
    assert (rounded != exact).any()
    nearest = exact.astype(np.float32)
    for end in (-np.inf, nearest, np.inf):
        rows = np.nextafter(nearest, np.float32(end))
        assert np.array_equal(rows <= rounded, rows.astype(np.float64) <= exact)


def test_probes_try_each_threshold_from_both_sides(wine: tuple[treelite.Model, Forest]) -> None:
    _, forest = wine
    rows = probes(forest)
    assert 0.05 < np.isnan(rows).mean() < 0.15
    for feature in range(forest.features):
        at = forest.threshold[forest.feature == feature].astype(np.float32)
        tried = [np.isin(np.nextafter(at, np.float32(end)), rows[:, feature]).mean() for end in (-9e9, 9e9)]
        assert min(tried) > 0.9  # twice each, a tenth is missing


def test_converted_trees_agree_on_probes(wine: tuple[treelite.Model, Forest]) -> None:
    model, forest = wine
    rows = probes(forest)
    assert agree(OnnxTrees(forest)(rows), Gtil(model)(rows))
    assert isinstance(fastest("m", model, forest, 1), OnnxTrees)


def one_step_off(forest: Forest) -> Array:
    return np.nextafter(float32_thresholds(forest), np.float32(-np.inf))


def test_conversion_that_answers_differently_is_not_used(
    wine: tuple[treelite.Model, Forest], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, forest = wine
    monkeypatch.setattr(onnx_trees, "float32_thresholds", one_step_off)
    with caplog.at_level(logging.WARNING):
        assert isinstance(fastest("m", model, forest, 1), Gtil)
    assert "model 'm': ONNX Runtime answers its trees differently" in caplog.text


def test_wrong_way_of_missing_values_is_found(wine: tuple[treelite.Model, Forest]) -> None:
    model, forest = wine
    turned = OnnxTrees(forest._replace(default_left=~forest.default_left))
    rows = probes(forest)
    assert not agree(turned(rows), Gtil(model)(rows))


def test_treelite_answers_without_onnxruntime(
    wine: tuple[treelite.Model, Forest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "backends.fil.onnx_trees")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert isinstance(fastest("m", *wine, 1), Gtil)


def expectation(forest: Forest, cover: Array, node: int, row: Array, known: frozenset[int]) -> Array:
    """The mean of the leaves below a node: of those that the row may reach, with only some features known."""
    if forest.left[node] < 0:
        return forest.values[node]
    left, right = forest.left[node], forest.right[node]
    if forest.feature[node] in known:
        child = left if row[forest.feature[node]] <= forest.threshold[node] else right
        return expectation(forest, cover, child, row, known)
    below = [expectation(forest, cover, child, row, known) * cover[child] for child in (left, right)]
    return sum(below) / cover[node]


def test_shapley_values_are_those_of_the_definition(wine: tuple[treelite.Model, Forest]) -> None:
    model, forest = wine
    trees = range(len(forest.roots))
    cover = np.concatenate([model.get_tree_accessor(tree).get_field("sum_hess") for tree in trees])
    row = datasets.load_wine().data[60, 6:10].astype(np.float32)

    def mean(known: frozenset[int]) -> Array:
        return sum(expectation(forest, cover, root, row, known) for root in forest.roots) / len(forest.roots)

    (found,) = Explainer(model, forest)(row[None])
    for feature in range(4):
        others, expected = [other for other in range(4) if other != feature], np.zeros(3)
        for size in range(4):
            weight = factorial(size) * factorial(3 - size) / factorial(4)
            for subset in map(frozenset, combinations(others, size)):
                expected += weight * (mean(subset | {feature}) - mean(subset))
        np.testing.assert_allclose(found[:, feature], expected, atol=1e-6)
    np.testing.assert_allclose(found[:, 4], mean(frozenset()), atol=1e-6)
