"""Static check that executions of a Python model leave nothing behind that a later one could find.

Several instances of such a model may then execute in any process, and in another one from some point on:
no answer tells. The check is an allow list like that of `event_loop_safety.py`, which comes first. A function
may read everything and call what reads (`reading_calls.py`) and the source's other functions; it may change
only what it has made itself. `initialize` may set attributes of `self`, too, but change no module: instances
share it here. Nothing may keep an iterator, which even a loop uses up.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from typing import Final

from backends.python.execution.event_loop_safety import is_safe_on_event_loop
from backends.python.execution.parsing import parse
from backends.python.execution.reading_calls import (
    BUILTINS,
    CHANGING,
    COMPLETING,
    CONSUMING,
    ITERATORS,
    KEYWORDS,
    MAKING,
    METHODS,
    NUMPY,
)

_UTILS: Final = "triton_python_backend_utils"
_MODULES: Final = ("json", "math", "numpy", "typing", _UTILS)
_JSON: Final = ("loads", "dumps")
_COMPLETE: Final = "auto_complete_config"
_PREPARING: Final = frozenset(("initialize", "__init__"))
_REFUSED: Final = (
    *(ast.Global, ast.Nonlocal, ast.Delete, ast.Lambda, ast.AsyncFunctionDef, ast.Starred),
    *(ast.With, ast.Match, ast.Yield, ast.YieldFrom, ast.Await),
)


def is_stateless(source: bytes) -> bool:
    """Check the source of a `model.py`."""
    if not is_safe_on_event_loop(source):
        return False
    module = parse(source)
    return not any(isinstance(node, _REFUSED) for node in ast.walk(module)) and _Source(module).is_stateless()


class _Source:
    """The facts about a whole source that the check of each function needs."""

    def __init__(self, module: ast.Module) -> None:
        self.module = module
        nodes = list(ast.walk(module))
        imports = [node for node in module.body if isinstance(node, ast.Import)]
        self.modules = {each.asname or each.name: each.name for node in imports for each in node.names}
        self.outer = [node for node in module.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        classes = [node for node in self.outer if isinstance(node, ast.ClassDef)]
        self.methods = [each for node in classes for each in node.body if isinstance(each, ast.FunctionDef)]
        self.callable = {each.name for each in self.outer}
        self.of_self = {each.name for each in self.methods}
        self.parents = {id(child): node for node in nodes for child in ast.iter_child_nodes(node)}
        self._nodes = nodes
        self._definitions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)]

    def is_stateless(self) -> bool:
        """Whether all statements and functions only read."""
        nested = len(self._definitions) > len(self.outer) + len(self.methods)
        functions = (node for node in self._definitions if isinstance(node, ast.FunctionDef))
        return (
            not nested
            and all(map(self._is_plain, self.module.body))
            and self._names_are_kept()
            and all(map(self._only_reads, functions))
        )

    def _is_plain(self, statement: ast.stmt) -> bool:
        """Whether a statement of the module just imports, defines or computes."""
        match statement:
            case ast.Import(names):
                return all(each.name in _MODULES for each in names)
            case ast.ImportFrom("typing") | ast.FunctionDef():
                return True
            case ast.ClassDef():
                return self._is_plain_class(statement)
            case ast.Assign() | ast.AnnAssign() | ast.Expr():
                return all(_Function(self, None).allows(node) for node in ast.walk(statement))
        return False

    def _is_plain_class(self, node: ast.ClassDef) -> bool:
        known = all(isinstance(base, ast.Name) and base.id in ("object", "Exception") for base in node.bases)
        body = all(
            isinstance(each, ast.FunctionDef | ast.Pass)
            or (isinstance(each, ast.Expr | ast.Assign | ast.AnnAssign) and _is_literal(each))
            for each in node.body
        )
        return known and body and not node.keywords and not node.decorator_list

    def _names_are_kept(self) -> bool:
        """Whether names by which the check knows functions and modules mean these everywhere."""
        names = Counter(node.name for node in self._definitions)
        attributes = set[str]()
        imported = 0
        for node in self._nodes:
            match node:
                case ast.Name(name, ast.Store()) | ast.arg(name):
                    names[name] += 1
                case ast.ExceptHandler(_, str(name)):
                    names[name] += 1
                case ast.Attribute(_, name, ast.Store()):
                    attributes.add(name)
                case ast.Import(modules):
                    imported += len(modules)
                case ast.ImportFrom(_, others):
                    names.update(each.asname or each.name for each in others)
        known = {*METHODS, *CHANGING, *COMPLETING}
        own = self.of_self | self.callable
        special = {name for name in own if name.startswith("__")} - {"__init__"}
        return (
            not special
            and not own & known
            and not attributes & (known | own)
            and not names.keys() & (BUILTINS | self.modules.keys())
            and imported == len(self.modules)
            and all(names[name] == 1 for name in self.callable)
        )

    def self_of(self, function: ast.FunctionDef) -> str:
        """Return the name of the object of which a function is a method; "" for another function."""
        if function not in self.methods or function.decorator_list or not function.args.args:
            return ""
        name = function.args.args[0].arg
        return name if [bound for bound, _ in _bindings(function)].count(name) == 1 else ""

    def _only_reads(self, function: ast.FunctionDef) -> bool:
        defaults = [*function.args.defaults, *filter(None, function.args.kw_defaults)]
        decorators = {ast.unparse(each) for each in function.decorator_list}
        if decorators - {"staticmethod"} or not all(isinstance(each, ast.Constant) for each in defaults):
            return False
        checked = _Function(self, function)
        return all(checked.allows(node) for statement in function.body for node in ast.walk(statement))


class _Function:
    """Checks the nodes of a function, or of a statement of the module."""

    def __init__(self, source: _Source, function: ast.FunctionDef | None) -> None:
        self._source = source
        self._name = "" if function is None else function.name
        self._made = set[str]() if function is None else _made(function)
        arguments = [] if function is None else [each.arg for each in function.args.args]
        self._first = arguments[0] if arguments else ""
        self._self = "" if function is None else source.self_of(function)
        self._own = source.of_self
        self._prepares = self._name in _PREPARING

    def allows(self, node: ast.AST) -> bool:
        match node:
            case ast.Attribute(ast.Name(name), _, ast.Store()):
                return self._prepares and name == self._self
            case ast.Attribute(_, _, ast.Store()):
                return False
            case ast.Attribute(_, name):
                return name not in ("flat", "initialize", _COMPLETE)
            case ast.Subscript(value, _, ast.Store()):
                return isinstance(value, ast.Name) and value.id in self._made
            case ast.AugAssign(target):
                return isinstance(target, ast.Name) and target.id in self._made
            case ast.Import() | ast.ImportFrom():
                return False
            case ast.keyword(name):
                return name in KEYWORDS
            case ast.GeneratorExp():
                return self._is_consumed(node)
            case ast.Call(called, arguments):
                return self._may_call(node, called, len(arguments))
        return True

    def _is_consumed(self, node: ast.AST) -> bool:
        match self._source.parents[id(node)]:
            case ast.Call(ast.Name(name)):
                return name in CONSUMING | ITERATORS  # of which the outer one is checked as well
            case ast.Call(ast.Attribute(_, "join")):
                return True
            case ast.For(_, iterated) | ast.comprehension(_, iterated):
                return iterated is node
        return False

    def _may_call(self, node: ast.Call, called: ast.expr, count: int) -> bool:
        match called:
            case ast.Name(name) if name in BUILTINS:
                return name not in ITERATORS or self._is_consumed(node)
            case ast.Name(name):
                return name in self._source.callable
            case ast.Attribute(ast.Name(name), method) if name in self._source.modules:
                return _may_call_module(self._source.modules[name], method, count)
            case ast.Attribute(ast.Name(name), method) if name in self._made and method in CHANGING:
                return True
            case ast.Attribute(ast.Name(name), method) if name == self._self and method in self._own:
                return True
            case ast.Attribute(ast.Name(name), method) if self._name == _COMPLETE and name == self._first:
                return method in COMPLETING
            case ast.Attribute(_, method):
                return count <= METHODS.get(method, -1)
        return False


def _may_call_module(module: str, function: str, count: int) -> bool:
    if module == "numpy":
        return count <= NUMPY.get(function, -1)
    if module == "json":
        return function in _JSON
    return module in ("math", _UTILS) and function != "InferenceRequest"


def _made(function: ast.FunctionDef) -> set[str]:
    """Return names whose objects the function has made itself: it may change these."""
    bound, shared = set[str](), set[str]()
    for name, value in _bindings(function):
        (bound if value is not None and _makes(value) else shared).add(name)
    return bound - shared


def _bindings(function: ast.FunctionDef) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield each binding of a name, with the value if it is just that."""
    values: dict[int, ast.expr] = {}
    changed = set[int]()
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets, value):
                values.update((id(target), value) for target in targets)
            case ast.AnnAssign(target, _, ast.expr() as value) | ast.NamedExpr(target, value):
                values[id(target)] = value
            case ast.AugAssign(target):  # changes what another binding has bound
                changed.add(id(target))
    arguments = function.args
    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        yield each.arg, None
    for extra in (arguments.vararg, arguments.kwarg):
        if extra is not None:
            yield extra.arg, None
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in changed:
            yield node.id, values.get(id(node))
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name, None


def _makes(value: ast.expr) -> bool:
    """Whether an expression makes a new object, that nothing else refers to."""
    match value:
        case ast.Call(ast.Name("list" | "dict" | "set")) | ast.Call(ast.Attribute(_, "copy"), []):
            return True
        case ast.Call(ast.Attribute(ast.Name(), function), _, []) if function in MAKING:
            return True
        case ast.Call(ast.Attribute(ast.Name(), function), _, [ast.keyword("dtype")]) if function in MAKING:
            return True
    displays = ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
    return isinstance(value, displays | ast.BinOp | ast.Constant)


def _is_literal(statement: ast.Expr | ast.Assign | ast.AnnAssign) -> bool:
    if statement.value is None:
        return True
    try:
        ast.literal_eval(statement.value)
    except ValueError:
        return False
    return True
