"""Static check that a Python model is safe to execute on the event loop of its replica.

Plain computing passes: with numpy and the tensors of requests, without other imports, and without anything
that blocks, calls the server or is thread-local. Calls of other models pass as well, because the server
suspends them: either plain `exec()`, or plain `async_exec()` in coroutines that await these, each other, and
`asyncio.gather` of them. The check is an allow list: anything unknown fails it.
"""

import ast
from collections.abc import Iterable, Sequence
from typing import Final

from backends.python.execution.parsing import parse

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
_UTILS_NAMES: Final = frozenset(
    (
        *("InferenceRequest", "InferenceResponse", "Tensor", "TritonError", "TritonModelException"),
        *("get_input_tensor_by_name", "get_output_tensor_by_name"),
        *("get_input_config_by_name", "get_output_config_by_name"),
        *("numpy_to_triton_type", "triton_string_to_numpy", "triton_to_numpy_type"),
        *("serialize_byte_tensor", "deserialize_bytes_tensor"),
    )
)
_BLOCKING: Final = frozenset(("get_response_sender", "is_cancelled"))
_CALLS: Final = frozenset(("exec", "async_exec"))
_THREAD_LOCAL: Final = frozenset(("seterr", "seterrcall", "setbufsize"))
_BUILTINS: Final = frozenset(
    ("__import__", "__builtins__", "breakpoint", "compile", "eval", "exec", "getattr", "input", "open")
)


def is_safe_on_event_loop(source: bytes) -> bool:
    """Check the source of a `model.py`."""
    nodes = list(ast.walk(parse(source)))
    facts = _SourceFacts(nodes)
    return not facts.mixed and all(_is_safe(node, facts) for node in nodes)


class _SourceFacts:
    """Facts about a whole source that the check of each node needs."""

    def __init__(self, nodes: Sequence[ast.AST]) -> None:
        self.utils = _names_of(_UTILS, nodes)
        self.asyncio = _names_of("asyncio", nodes)
        self.used = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
        self.used |= {id(node.func) for node in nodes if isinstance(node, ast.Call) and _is_plain(node)}
        """Modules whose attributes are read, and functions that are called without arguments."""
        awaited = [node.value for node in nodes if isinstance(node, ast.Await)]
        self.awaited = {id(call.func) for call in awaited if isinstance(call, ast.Call)}
        """Functions whose results are awaited where they are called."""
        called = {node.attr for node in nodes if isinstance(node, ast.Attribute)} & _CALLS
        waits = any(isinstance(node, ast.AsyncFunctionDef) for node in nodes)
        self.mixed = "exec" in called and waits
        """A coroutine that calls `exec()` would block the loop instead of awaiting."""


def _is_plain(call: ast.Call) -> bool:
    """Whether a call has no arguments: with `decoupled=True`, the result is an iterator, which blocks."""
    return not call.args and not call.keywords


def _names_of(module: str, nodes: Iterable[ast.AST]) -> set[str]:
    aliases = [alias for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return {alias.asname or alias.name for alias in aliases if alias.name == module}


def _is_safe(node: ast.AST, facts: _SourceFacts) -> bool:
    match node:
        case ast.Import(names):
            return all(alias.name in _MODULES for alias in names)
        case ast.ImportFrom(module):
            return module in _MODULES - {_UTILS, "numpy", "asyncio"}
        case ast.Attribute(ast.Name(name), attribute) if name in facts.utils:
            return attribute in _UTILS_NAMES
        case ast.Attribute(ast.Name(name), attribute) if name in facts.asyncio:
            return attribute == "gather" and id(node) in facts.awaited
        case ast.Attribute(_, attribute) if attribute in _CALLS:
            return id(node) in facts.used
        case ast.Attribute(_, attribute):
            return attribute not in _BLOCKING | _THREAD_LOCAL and not attribute.startswith("__")
        case ast.Name(name):  # a module may not be passed on, only its attributes read
            modules = facts.utils | facts.asyncio
            return name not in _BUILTINS and (name not in modules or id(node) in facts.used)
        case ast.AsyncFor() | ast.AsyncWith() | ast.Yield() | ast.YieldFrom():
            return False
    return True
