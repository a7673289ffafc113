"""Static check that executions of a Python model leave nothing behind that a later one could find.

Several instances of such a model may then execute in any process, and in another one from some point on:
no answer tells. The check is an allow list like that of `event_loop_safety.py`, which comes first: what a
function other than `initialize` does to anything but its own local names must be reading.
"""

import ast
from collections.abc import Iterator
from typing import Final

from backends.python.execution.event_loop_safety import is_safe_on_event_loop

_READING: Final = frozenset(
    (
        "all", "any", "argmax", "argmin", "argsort", "astype", "clip", "copy", "decode", "dot", "encode",
        "endswith", "format", "get", "index", "items", "join", "keys", "lower", "lstrip", "max", "mean",
        "min", "prod", "ravel", "reshape", "round", "rstrip", "split", "squeeze", "startswith", "std",
        "strip", "sum", "swapaxes", "take", "tobytes", "tolist", "transpose", "upper", "values", "var",
    )
)
"""Methods that change nothing, of numpy's arrays, strings and dictionaries."""
_CHANGING: Final = frozenset(
    (
        "at", "copyto", "fill_diagonal", "load", "memmap", "place", "put", "put_along_axis", "putmask",
        "save", "savetxt", "savez",
    )
)
"""Functions of numpy that change an argument, or files."""
_INPUTS: Final = 2
"""Arguments of a function of numpy by position; one more may be where it writes."""
_PREPARING: Final = frozenset(("initialize", "auto_complete_config", "__init__"))


def is_stateless(source: bytes) -> bool:
    """Check the source of a `model.py`."""
    if not is_safe_on_event_loop(source):
        return False
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    calls_models = any(isinstance(node, ast.AsyncFunctionDef) for node in ast.walk(tree))
    # The numbers that numpy draws are those of its process.
    draws = any(isinstance(node, ast.Attribute) and node.attr == "random" for node in ast.walk(tree))
    return not (calls_models or draws) and all(
        _only_reads(function) for function in functions if function.name not in _PREPARING
    )


def _only_reads(function: ast.FunctionDef) -> bool:
    if function.args.defaults or function.args.kw_defaults:  # objects that are there from call to call
        return False
    own = _own_names(function)
    return all(_reads(node, own) for node in ast.walk(function))


def _own_names(function: ast.FunctionDef) -> set[str]:
    """Return names whose objects the function has made itself: it may change these."""
    bound = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and _is_stored(node)}
    shared = {name for value, names in _bindings(function) if not _makes(value) for name in names}
    return bound - shared


def _bindings(function: ast.FunctionDef) -> Iterator[tuple[ast.expr, list[str]]]:
    """Yield what is bound to names, and the names."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            targets: list[ast.expr] = node.targets
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
            targets = [node.target]
        elif isinstance(node, ast.For | ast.comprehension):
            yield node.iter, _names(node.target)
            continue
        else:
            continue
        if node.value is not None:
            for target in targets:
                yield node.value, _names(target)


def _makes(value: ast.expr) -> bool:
    """Whether an expression makes a new object, that nothing else refers to."""
    return isinstance(
        value,
        ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp | ast.BinOp | ast.Constant,
    )


def _names(target: ast.expr) -> list[str]:
    return [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]


def _is_stored(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _reads(node: ast.AST, own: set[str]) -> bool:
    match node:
        case ast.Global() | ast.Nonlocal() | ast.Delete() | ast.Lambda() | ast.ClassDef():
            return False
        case ast.Attribute(_, _, ast.Store() | ast.Del()):
            return False
        case ast.Subscript(value, _, ast.Store() | ast.Del()):
            return isinstance(value, ast.Name) and value.id in own
        case ast.AugAssign(ast.Name(name)):
            return name in own
        case ast.keyword(arg):
            return arg not in (None, "out")
        case ast.Call(ast.Attribute(ast.Name("np" | "numpy"), function), arguments):
            more = arguments[_INPUTS:]
            return function not in _CHANGING and not any(isinstance(each, ast.Attribute) for each in more)
        case ast.Call(ast.Attribute(value, method)):
            return _may_call(value, method, own)
    return True


def _may_call(value: ast.expr, method: str, own: set[str]) -> bool:
    if method in _READING:
        return True
    match value:
        case ast.Name("self"):
            return True  # a function of the model, which is checked too
        case ast.Name(name):
            return name in own or _is_module(name)
        case ast.Call():
            return method == "as_numpy"
    return False


def _is_module(name: str) -> bool:
    return name in ("pb_utils", "math", "json", "triton_python_backend_utils")
