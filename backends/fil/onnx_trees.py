"""A forest as an ONNX graph: ONNX Runtime answers it several times faster than treelite's own inference.

Its operators: TreeEnsembleRegressor of ONNX ML, then the mean, the base score and the postprocessor.
"""

from typing import Any, Final

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from backends.fil.forest import GREATER, GREATER_EQUAL, LESS, LESS_EQUAL, Array, Forest
from backends.fil.tensors import INPUT, OUTPUT
from backends.onnxruntime.bound import BoundRuns
from backends.onnxruntime.session import run_of
from backends.signature import Signature

_MODES: Final = {
    LESS: b"BRANCH_LT",
    LESS_EQUAL: b"BRANCH_LEQ",
    GREATER: b"BRANCH_GT",
    GREATER_EQUAL: b"BRANCH_GTE",
}
_ROUNDED_UP: Final = (LESS, GREATER_EQUAL)
_OPERATORS: Final = {
    "identity": "",
    "identity_multiclass": "",
    "sigmoid": "Sigmoid",
    "multiclass_ova": "Sigmoid",
    "softmax": "Softmax",
    "exponential": "Exp",
    "logarithm_one_plus_exp": "Softplus",
}
"""Treelite's postprocessors that ONNX has; the others are rare."""
_SCALED: Final = ("sigmoid", "multiclass_ova")
_MAX_NODES: Final = 5_000_000
"""A larger graph would take more than 2 GiB in some step on its way."""


class OnnxTrees:
    """A forest in a session of ONNX Runtime, which allows concurrent runs.

    A session has one thread: with more, ONNX Runtime divides even a single row among them, and waits.
    """

    def __init__(self, forest: Forest) -> None:
        self._session = open_session(forest)
        self._run = run_of(self._session)

    def __call__(self, rows: Array) -> Array:
        """Answer rows, float32[n, features], by float32[n, classes]."""
        answer: Array = self._run([OUTPUT], {INPUT: rows}, None)[0]
        return answer

    def bound(self, signature: Signature) -> BoundRuns:
        return BoundRuns(self._session, None, signature)


def open_session(forest: Forest) -> ort.InferenceSession:
    """Return a session of one thread, whose tensors have the names of the model's."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    graph = _graph(forest).SerializeToString()
    return ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def is_expressible(forest: Forest) -> bool:
    """Return whether a graph can stand for a forest: no categories, no rare tests or postprocessors."""
    inner = forest.left >= 0
    return (
        not forest.categories
        and forest.postprocessor in _OPERATORS
        and len(forest.tree) <= _MAX_NODES
        and bool(np.isin(forest.comparison[inner], tuple(_MODES)).all())
    )


def float32_thresholds(forest: Forest) -> Array:
    """Return thresholds that divide all float32 as the forest's float64 do; 0 in leaves."""
    nearest = forest.threshold.astype(np.float32)
    up = np.isin(forest.comparison, _ROUNDED_UP)
    higher = np.where(nearest < forest.threshold, np.nextafter(nearest, np.float32(np.inf)), nearest)
    lower = np.where(nearest > forest.threshold, np.nextafter(nearest, np.float32(-np.inf)), nearest)
    return np.where(forest.left < 0, np.float32(0), np.where(up, higher, lower))


def _graph(forest: Forest) -> ModelProto:
    nodes, constants = [_ensemble(forest)], []
    if forest.average:
        constants.append(numpy_helper.from_array(forest.trees_of_class().astype(np.float32), "trees"))
        nodes.append(_node("Div", nodes, "trees"))
    if forest.base.any():
        constants.append(numpy_helper.from_array(forest.base.astype(np.float32), "base"))
        nodes.append(_node("Add", nodes, "base"))
    if forest.postprocessor in _SCALED and forest.sigmoid_alpha != 1:
        constants.append(numpy_helper.from_array(np.array([forest.sigmoid_alpha], np.float32), "alpha"))
        nodes.append(_node("Mul", nodes, "alpha"))
    if operator := _OPERATORS[forest.postprocessor]:
        nodes.append(_node(operator, nodes))
    nodes[-1].output[0] = OUTPUT
    rows = helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["n", forest.features])
    answers = helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["n", forest.classes])
    graph = helper.make_graph(nodes, "trees", [rows], [answers], constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _node(operator: str, before: list[NodeProto], *constants: str) -> NodeProto:
    return helper.make_node(operator, [before[-1].output[0], *constants], [operator.lower()])


def _ensemble(forest: Forest) -> NodeProto:
    node = helper.make_node("TreeEnsembleRegressor", [INPUT], ["sum"], domain="ai.onnx.ml")
    leaf = forest.left < 0
    start = forest.roots[forest.tree]
    leaves, classes = _weights(forest)
    _add(node, "nodes_treeids", ints=forest.tree)
    _add(node, "nodes_nodeids", ints=np.arange(len(leaf)) - start)
    _add(node, "nodes_featureids", ints=np.where(leaf, 0, forest.feature))
    _add(node, "nodes_modes", strings=_modes(forest))
    _add(node, "nodes_values", floats=float32_thresholds(forest))
    _add(node, "nodes_truenodeids", ints=np.where(leaf, 0, forest.left - start))
    _add(node, "nodes_falsenodeids", ints=np.where(leaf, 0, forest.right - start))
    _add(node, "nodes_missing_value_tracks_true", ints=(forest.default_left & ~leaf).astype(np.int64))
    _add(node, "target_treeids", ints=forest.tree[leaves])
    _add(node, "target_nodeids", ints=(leaves - start[leaves]))
    alone = forest.class_of_tree[forest.tree[leaves]]
    _add(node, "target_ids", ints=np.where(alone < 0, classes, alone))
    _add(node, "target_weights", floats=forest.values[leaves, classes].astype(np.float32))
    node.attribute.append(helper.make_attribute("n_targets", forest.classes))
    node.attribute.append(helper.make_attribute("aggregate_function", "SUM"))
    node.attribute.append(helper.make_attribute("post_transform", "NONE"))
    return node


def _weights(forest: Forest) -> tuple[Array, Array]:
    """Return leaves, and columns of their values: those that are not 0, and at least the first."""
    wanted = forest.values != 0
    wanted[:, 0] |= ~wanted.any(axis=1)
    wanted[forest.left >= 0] = False
    leaves, classes = np.nonzero(wanted)
    return leaves, classes


def _modes(forest: Forest) -> list[bytes]:
    return [
        _MODES[comparison] if left >= 0 else b"LEAF"
        for comparison, left in zip(forest.comparison.tolist(), forest.left.tolist(), strict=True)
    ]


def _add(node: NodeProto, name: str, **values: Any) -> None:
    """Add an attribute of many elements; `make_attribute` would look at each of them."""
    ((field, elements),) = values.items()
    kind = {"ints": "INTS", "floats": "FLOATS", "strings": "STRINGS"}[field]
    attribute = node.attribute.add(name=name, type=kind)
    getattr(attribute, field).extend(elements)
