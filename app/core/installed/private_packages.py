"""Gives the server's packages names of their own in a process that executes the Python code of models.

There, and in a program with packages of these names that imports `nereid.inprocess` or `nereid.testing`,
`app`, `backends`, `deployments` and `nereid` are what the model's code finds by these names: a file beside
its `model.py`, an installed package, or nothing. The server's modules are `_nereid.app.core.errors`
and so on. They are written with the plain names, so their `import` statements are translated: each of them
has builtins with an `__import__` that does it.

This module needs nothing but the standard library of Python 3.10, and is loaded by its location.
"""

import builtins
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, Final

PRIVATE: Final = "_nereid"
CLIENT: Final = "nereid_client"
NAMES: Final = tuple("app backends deployments nereid".split())  # noqa: SIM905


def use_private_names(root: str) -> None:
    """Load the server's packages, which are in `root`, by private names from now on, and hide the plain ones.

    Called before any of them is imported. The client library keeps its name: models may use it.
    """
    package = ModuleType(PRIVATE)
    package.__path__ = [root]
    sys.modules[PRIVATE] = package
    sys.meta_path.insert(0, _Finder(root))
    sys.meta_path.append(_ClientFinder(os.path.join(root, "client")))


class _ClientFinder(MetaPathFinder):
    """Finds the client library where its own distribution is not installed."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [self._folder]) if name == CLIENT else None


class _Finder(MetaPathFinder):
    """Finds the server's modules by private names, and by the plain names only what is not the server's."""

    def __init__(self, root: str) -> None:
        self._folders = {os.path.realpath(os.path.join(root, name)) for name in NAMES}
        self._public = [os.path.join(root, os.pardir, os.pardir)]
        """Where `nereid` is in an installed server, which has the other packages within it."""
        self._builtins = {**vars(builtins), "__import__": _import}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in NAMES:
            return self._of_others(name)
        if not name.startswith(f"{PRIVATE}."):
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is None and name == f"{PRIVATE}.nereid":
            spec = PathFinder.find_spec(name, self._public)
        if spec is not None and spec.loader is not None:
            spec.loader = _Translating(spec.loader, self._builtins)
        return spec

    def _of_others(self, name: str) -> ModuleSpec | None:
        """Return what Python finds without the server."""
        hidden = False
        for finder in sys.meta_path:  # some installed packages, editable ones say, have a finder of their own
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, None)
            if finder is PathFinder and self._is_own(spec):
                hidden = True
                spec = PathFinder.find_spec(
                    name, [each for each in sys.path if not self._has_own(name, each)]
                )
            if self._is_own(spec):
                hidden = True
            elif spec is not None:
                return spec
        if hidden:  # None would have the next finder asked
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return None

    def _has_own(self, name: str, entry: str) -> bool:
        return self._is_own(PathFinder.find_spec(name, [entry]))

    def _is_own(self, spec: ModuleSpec | None) -> bool:
        locations = () if spec is None else spec.submodule_search_locations or ()
        found = {os.path.realpath(folder) for folder in locations}
        installed = any(os.path.isdir(os.path.join(folder, "_server")) for folder in found)
        return installed or not found.isdisjoint(self._folders)


class _Translating(Loader):
    """Executes a module of the server with builtins that translate its imports."""

    def __init__(self, loader: Loader, own_builtins: Mapping[str, Any]) -> None:
        self._loader = loader
        self._builtins = own_builtins

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = self._builtins
        self._loader.exec_module(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # `get_source` for tracebacks, say


def _import(
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    first = name.partition(".")[0]
    if level or first not in NAMES:
        return builtins.__import__(name, globals, locals, fromlist or (), level)
    if not fromlist:  # the statement binds the first of the names
        importlib.import_module(f"{PRIVATE}.{name}")
        return importlib.import_module(f"{PRIVATE}.{first}")
    return builtins.__import__(f"{PRIVATE}.{name}", globals, locals, fromlist, 0)
