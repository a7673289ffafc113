"""The first execution of a session, which takes many times longer, before requests arrive.

Only of a graph that keeps nothing from one execution to the next: the model must not see a made-up request.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
from tensorflow.python.framework import op_def_registry

from app.core.errors import InferError
from backends.tensorflow.sessions import TfSession

logger = logging.getLogger(__name__)

_READERS: Final = frozenset(
    {
        *("Placeholder", "PlaceholderV2", "PlaceholderWithDefault"),
        *("Variable", "VariableV2", "VarHandleOp", "ReadVariableOp", "ResourceGather"),
        *("HashTable", "HashTableV2", "LookupTableFind", "LookupTableFindV2"),
        *("LookupTableSize", "LookupTableSizeV2"),
        *("If", "While", "Case", "StatefulPartitionedCall"),
    }
)
"""Operations that TensorFlow calls stateful and that change nothing."""


def warm_up(session: TfSession, model_name: str) -> None:
    """Execute zeros, or empty strings, of the smallest shape; a failure is of no consequence."""
    try:
        if keeps_nothing(session.graph, session.names.outputs.values()):
            session.run(_zeros(session), list(session.names.outputs))
    except (InferError, ValueError) as error:
        logger.debug("model '%s' did not execute zeros: %s", model_name, error)


def keeps_nothing(graph: Any, outputs: Iterable[str]) -> bool:
    """Whether the operations that outputs depend on, and the functions they call, change no state."""
    functions = {each.signature.name: each for each in graph.as_graph_def().library.function}
    waiting = [graph.get_tensor_by_name(name).op for name in outputs]
    seen, called = set(waiting), set[str]()
    while waiting:
        operation = waiting.pop()
        if not _reads(operation.type):
            return False
        called |= _called(operation.node_def.attr)
        before = {tensor.op for tensor in operation.inputs} | set(operation.control_inputs)
        waiting += before - seen
        seen |= before
    return _functions_keep_nothing(functions, called)


def _functions_keep_nothing(functions: Mapping[str, Any], called: set[str]) -> bool:
    waiting, seen = list(called), set(called)
    while waiting:
        for node in functions[waiting.pop()].node_def:
            if node.op not in functions and not _reads(node.op):
                return False
            more = (_called(node.attr) | ({node.op} & functions.keys())) - seen
            waiting += more
            seen |= more
    return True


def _reads(kind: str) -> bool:
    definition = op_def_registry.get(kind)
    return definition is not None and (kind in _READERS or not definition.is_stateful)


def _called(attributes: Mapping[str, Any]) -> set[str]:
    """Return the functions that an operation names."""
    single = {value.func.name for value in attributes.values() if value.HasField("func")}
    return single.union(*({each.name for each in value.list.func} for value in attributes.values()))


def _zeros(session: TfSession) -> dict[str, Any]:
    feed = {}
    for name, tensor in session.names.inputs.items():
        placeholder = session.graph.get_tensor_by_name(tensor)
        shape = [1 if size is None else size for size in placeholder.shape.as_list()]
        dtype = placeholder.dtype.as_numpy_dtype
        feed[name] = np.full(shape, b"", object) if dtype is object else np.zeros(shape, dtype)
    return feed
