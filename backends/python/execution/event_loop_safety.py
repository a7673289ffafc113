"""Whether a Python model may execute on a thread that is not its own: a look at its source.

Only what is plain computing passes: numpy and the tensors of its requests, nothing else imported, nothing
that waits, asks the server or belongs to a thread. The exceptions are calls of other models, whose waiting
the server can arrange: either plain `exec()`, or plain `async_exec()` in coroutines that await these, each
other, and `asyncio.gather` of them. Whatever is not known to be harmless does not pass.
"""

import ast
from collections.abc import Iterable, Sequence
from typing import Final

_UTILS: Final = "triton_python_backend_utils"
_MODULES: Final = frozenset(
    (
        _UTILS,
        "numpy",
        "asyncio",
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
_WAITING: Final = frozenset(("get_response_sender", "is_cancelled"))
_CALLS: Final = frozenset(("exec", "async_exec"))
_OF_A_THREAD: Final = frozenset(("seterr", "seterrcall", "setbufsize"))
_BUILTINS: Final = frozenset(
    ("__import__", "__builtins__", "breakpoint", "compile", "eval", "exec", "getattr", "input", "open")
)


def is_safe_on_event_loop(source: bytes) -> bool:
    """Look at the source of a `model.py`."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    known = _Known(nodes)
    return not known.mixed and all(_is_harmless(node, known) for node in nodes)


class _Known:
    """What has to be seen of a whole source before its parts can be judged."""

    def __init__(self, nodes: Sequence[ast.AST]) -> None:
        self.utils = _names_of(_UTILS, nodes)
        self.asyncio = _names_of("asyncio", nodes)
        self.used = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
        self.used |= {id(node.func) for node in nodes if isinstance(node, ast.Call) and _is_plain(node)}
        """Modules whose attributes are taken, functions that are called without arguments."""
        awaited = [node.value for node in nodes if isinstance(node, ast.Await)]
        self.awaited = {id(call.func) for call in awaited if isinstance(call, ast.Call)}
        """Functions whose results are awaited where they are called."""
        called = {node.attr for node in nodes if isinstance(node, ast.Attribute)} & _CALLS
        waits = any(isinstance(node, ast.AsyncFunctionDef) for node in nodes)
        self.mixed = "exec" in called and waits
        """Coroutines must not wait but by awaiting."""


def _is_plain(call: ast.Call) -> bool:
    """With `decoupled=True` it is an iterator, which waits each time that it is asked."""
    return not call.args and not call.keywords


def _names_of(module: str, nodes: Iterable[ast.AST]) -> set[str]:
    aliases = [alias for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return {alias.asname or alias.name for alias in aliases if alias.name == module}


def _is_harmless(node: ast.AST, known: _Known) -> bool:
    match node:
        case ast.Import(names):
            return all(alias.name in _MODULES for alias in names)
        case ast.ImportFrom(module):
            return module in _MODULES - {_UTILS, "numpy", "asyncio"}
        case ast.Attribute(ast.Name(name), attribute) if name in known.utils:
            return attribute in _OF_UTILS
        case ast.Attribute(ast.Name(name), attribute) if name in known.asyncio:
            return attribute == "gather" and id(node) in known.awaited
        case ast.Attribute(_, attribute) if attribute in _CALLS:
            return id(node) in known.used
        case ast.Attribute(_, attribute):
            return attribute not in _WAITING | _OF_A_THREAD and not attribute.startswith("__")
        case ast.Name(name):  # a module itself goes nowhere
            modules = known.utils | known.asyncio
            return name not in _BUILTINS and (name not in modules or id(node) in known.used)
        case ast.AsyncFor() | ast.AsyncWith() | ast.Yield() | ast.YieldFrom():
            return False
    return True
