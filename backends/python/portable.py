"""Whether a Python model may execute on a thread that is not its own: a look at its source.

Only what is plain computing passes: numpy and the tensors of its requests, nothing else imported, nothing
that waits, asks the server or belongs to a thread. The one exception is a plain `exec()` of a request to
another model, whose waiting the server can arrange. Whatever is not known to be harmless does not pass.
"""

import ast
from typing import Final

_UTILS: Final = "triton_python_backend_utils"
_MODULES: Final = frozenset(
    (
        _UTILS,
        "numpy",
        "json",
        "math",
        "typing",
        "collections",
        "dataclasses",
        "enum",
        "functools",
        "itertools",
    )
)
_OF_UTILS: Final = frozenset(
    (
        *("InferenceRequest", "InferenceResponse", "Tensor", "TritonError", "TritonModelException"),
        *("get_input_tensor_by_name", "get_output_tensor_by_name"),
        *("get_input_config_by_name", "get_output_config_by_name"),
        *("numpy_to_triton_type", "triton_string_to_numpy", "triton_to_numpy_type"),
        *("serialize_byte_tensor", "deserialize_bytes_tensor"),
    )
)
_WAITING: Final = frozenset(("get_response_sender", "is_cancelled", "async_exec"))
_OF_A_THREAD: Final = frozenset(("seterr", "seterrcall", "setbufsize"))
_BUILTINS: Final = frozenset(
    ("__import__", "__builtins__", "breakpoint", "compile", "eval", "exec", "getattr", "input", "open")
)


def is_portable(source: bytes) -> bool:
    """Look at the source of a `model.py`."""
    tree = ast.parse(source)
    utils = _names_of_utils(tree)
    used = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used |= {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_plain(node)}
    return all(_is_harmless(node, utils, used) for node in ast.walk(tree))


def _is_plain(call: ast.Call) -> bool:
    """With `decoupled=True` it is an iterator, which waits each time that it is asked."""
    return not call.args and not call.keywords


def _names_of_utils(tree: ast.AST) -> set[str]:
    aliases = [alias for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    return {alias.asname or alias.name for alias in aliases if alias.name == _UTILS}


def _is_harmless(node: ast.AST, utils: set[str], used: set[int]) -> bool:
    match node:
        case ast.Import(names):
            return all(alias.name in _MODULES for alias in names)
        case ast.ImportFrom(module):
            return module in _MODULES - {_UTILS, "numpy"}
        case ast.Attribute(ast.Name(name), attribute) if name in utils:
            return attribute in _OF_UTILS
        case ast.Attribute(_, "exec"):
            return id(node) in used
        case ast.Attribute(_, attribute):
            return attribute not in _WAITING | _OF_A_THREAD and not attribute.startswith("__")
        case ast.Name(name):  # the module itself goes nowhere
            return name not in _BUILTINS and (name not in utils or id(node) in used)
        case ast.AsyncFunctionDef() | ast.Await() | ast.Yield() | ast.YieldFrom():
            return False
    return True
