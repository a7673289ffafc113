"""The trees of a treelite model as arrays, checked: treelite's inference trusts its model.

The format of the fields is that of treelite's serialization, version 4.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import treelite

from app.core.errors import unsupported

Array = npt.NDArray[Any]

BINARY: Final = 0
MULTI_CLASS: Final = 2
"""Values of `task_type`."""
LESS, LESS_EQUAL, GREATER, GREATER_EQUAL = 2, 3, 4, 5
"""Values of `comparison`; 1 is equality. A row for which it holds goes to the left."""


class Damaged(Exception):
    """The model contradicts itself."""


class Categories(NamedTuple):
    """The test of a node with categories: whether those listed go to the right, or to the left."""

    listed: Array
    to_right: bool


class Forest(NamedTuple):
    """A model's trees; arrays are over the nodes of all trees, in order, unless they say else.

    Attributes:
        features: number of features of a row.
        classes: number of values of an answer; 1 for regressors and most binary classifiers.
        task: BINARY, MULTI_CLASS or another of treelite's `task_type`.
        tree: which tree a node is of, int64.
        roots: first node of each tree, int64[trees].
        left, right: children, -1 in leaves, int64.
        feature: tested by the node, -1 in leaves, int64.
        threshold, comparison: of the node's test, float64 and int8.
        default_left: where rows go that miss the feature, bool.
        categories: tests of nodes with categories, by node.
        values: of leaves, float64[nodes, 1] or float64[nodes, classes].
        class_of_tree: to which value of the answer a tree adds, int64[trees]; -1: a leaf has all values.
        average: whether the answer is a mean over trees rather than a sum.
        base: added to it, float64[classes].
        postprocessor, sigmoid_alpha: what is done to it then.
    """

    features: int
    classes: int
    task: int
    tree: Array
    roots: Array
    left: Array
    right: Array
    feature: Array
    threshold: Array
    comparison: Array
    default_left: Array
    categories: Mapping[int, Categories]
    values: Array
    class_of_tree: Array
    average: bool
    base: Array
    postprocessor: str
    sigmoid_alpha: float

    @property
    def leaves(self) -> Array:
        """The nodes without children."""
        return np.flatnonzero(self.left < 0)

    def trees_of_class(self) -> Array:
        """Return how many trees add to each value of an answer, float64[classes], at least 1."""
        alone = self.class_of_tree[self.class_of_tree >= 0]
        counts = np.bincount(alone, minlength=self.classes) + np.sum(self.class_of_tree < 0)
        return np.maximum(counts, 1).astype(np.float64)


_NODE_FIELDS: Final = (
    "node_type",
    "cleft",
    "cright",
    "split_index",
    "default_left",
    "leaf_value",
    "threshold",
    "cmp",
    "category_list_right_child",
    "leaf_vector_begin",
    "leaf_vector_end",
    "category_list_begin",
    "category_list_end",
)
_OTHER_FIELDS: Final = ("leaf_vector", "category_list")


def read_forest(model: treelite.Model) -> Forest:
    """Read a model's trees.

    Raises:
        InferError: UNSUPPORTED for several targets.
        Damaged: what treelite's inference would trust is not so.
    """
    header: Callable[[str], Any] = model.get_header_accessor().get_field
    if _scalar(header, "num_target") != 1:
        raise unsupported("Multi-target model not supported")
    trees = _scalar(header, "num_tree")
    columns = _columns(model, trees)
    sizes = columns.pop("sizes")
    starts = np.concatenate([[0], np.cumsum(sizes)])
    offset = np.repeat(starts[:-1], sizes)
    inner = columns["node_type"] != 0
    classes = int(header("num_class")[0]) if len(header("num_class")) == 1 else 0
    forest = Forest(
        features=_scalar(header, "num_feature"),
        classes=classes,
        task=_scalar(header, "task_type"),
        tree=np.repeat(np.arange(trees), sizes),
        roots=starts[:-1],
        left=np.where(inner, columns["cleft"] + offset, -1),
        right=np.where(inner, columns["cright"] + offset, -1),
        feature=columns["split_index"].astype(np.int64),
        threshold=columns["threshold"].astype(np.float64),
        comparison=columns["cmp"],
        default_left=columns["default_left"] != 0,
        categories=_categories(columns),
        values=_values(columns, header("leaf_vector_shape"), classes),
        class_of_tree=header("class_id").astype(np.int64),
        average=bool(_scalar(header, "average_tree_output")),
        base=header("base_scores").copy(),
        postprocessor=header("postprocessor"),
        sigmoid_alpha=float(header("sigmoid_alpha")[0]),
    )
    _check(forest, columns, sizes, header("target_id"))
    return forest


def _scalar(header: Callable[[str], Any], name: str) -> int:
    return int(header(name)[0])


def _columns(model: treelite.Model, trees: int) -> dict[str, Array]:
    """Return fields of all trees, joined: `_NODE_FIELDS` over nodes; begins and ends count over all trees."""
    found: dict[str, list[Array]] = {name: [] for name in (*_NODE_FIELDS, *_OTHER_FIELDS, "sizes")}
    filled = dict.fromkeys(_OTHER_FIELDS, 0)
    for number in range(trees):
        field = model.get_tree_accessor(number).get_field
        size = int(field("num_nodes")[0])
        found["sizes"].append(np.array([size]))
        for name in _OTHER_FIELDS:
            found[name].append(field(name))
        for name in _NODE_FIELDS:
            column = field(name)
            if size < 1 or len(column) != size:
                raise Damaged(f"tree {number} has {len(column)} values of '{name}' for {size} nodes")
            if name.endswith(("_begin", "_end")):
                target = name.rpartition("_")[0]
                if int(column.max()) > len(found[target][-1]):
                    raise Damaged(f"'{name}' of tree {number} is out of range")
                column = column.astype(np.int64) + filled[target]
            found[name].append(column)
        for name in _OTHER_FIELDS:
            filled[name] += len(found[name][-1])
    if not trees:
        raise Damaged("it has no trees")
    return {name: np.concatenate(parts) for name, parts in found.items()}


def _categories(columns: Mapping[str, Array]) -> dict[int, Categories]:
    begin, end = columns["category_list_begin"], columns["category_list_end"]
    return {
        int(node): Categories(
            columns["category_list"][begin[node] : end[node]],
            bool(columns["category_list_right_child"][node]),
        )
        for node in np.flatnonzero(columns["node_type"] == 2)
    }


def _values(columns: Mapping[str, Array], shape: Array, classes: int) -> Array:
    """Return the values of the nodes; those of the inner nodes are 0."""
    width = columns["leaf_vector_end"] - columns["leaf_vector_begin"]
    leaves = np.flatnonzero(columns["node_type"] == 0)
    if shape.tolist() not in ([1, 1], [1, classes]):
        raise Damaged(f"the shape of its leaves is {shape.tolist()}, for {classes} classes")
    if not width.any() and shape[1] == 1:
        return np.where(columns["node_type"] == 0, columns["leaf_value"], 0.0).astype(np.float64)[:, None]
    if not (width[leaves] == shape[1]).all():
        raise Damaged(f"a leaf has another number of values than {shape[1]}")
    values = np.zeros((len(width), int(shape[1])))
    taken = columns["leaf_vector_begin"][leaves, None] + np.arange(int(shape[1]))
    values[leaves] = columns["leaf_vector"][taken]
    return values


def _check(forest: Forest, columns: Mapping[str, Array], sizes: Array, target: Array) -> None:
    inner, leaves = np.flatnonzero(forest.left >= 0), forest.leaves
    first, last = forest.roots[forest.tree], (forest.roots + sizes)[forest.tree]
    children = np.concatenate([forest.left[inner], forest.right[inner]])
    doubled = np.concatenate([inner, inner])
    width = forest.values.shape[1]
    own = np.full(len(sizes), -1) if width > 1 else forest.class_of_tree
    numeric = inner[columns["node_type"][inner] == 1]
    rules = {
        "a node is of unknown type": np.isin(columns["node_type"], (0, 1, 2)),
        "a child of a node is no node of its tree": (children > first[doubled]) & (children < last[doubled]),
        "a node has two parents": np.bincount(children, minlength=1) <= 1,
        "a leaf has children": (columns["cleft"][leaves] == -1) & (columns["cright"][leaves] == -1),
        "a node compares in an unknown way": np.isin(forest.comparison[numeric], (1, 2, 3, 4, 5)),
        f"a node tests a feature beyond {forest.features}": (forest.feature[inner] >= 0)
        & (forest.feature[inner] < forest.features),
        "a list ends before it begins": columns["category_list_end"] >= columns["category_list_begin"],
        "a tree is of an unknown class": (len(forest.class_of_tree) == len(sizes))
        and (forest.class_of_tree == own) & (forest.class_of_tree < forest.classes),
        "a tree is of no class": (width > 1) or (forest.class_of_tree >= 0),
        "a tree is of an unknown target": (len(target) == len(sizes)) and np.isin(target, (0, -1)),
        "its base scores are not one for each class": len(forest.base) == forest.classes > 0,
    }
    for fault, holds in rules.items():
        if not np.all(holds):
            raise Damaged(fault)
