"""Gives the server's packages names of their own in a process that executes the Python code of models.

There `app`, `backends`, `deployments` and `nereid` are what the model's code finds by these names: a file
beside its `model.py`, an installed package, or nothing. The server's modules are `_nereid.app.core.errors`
and so on. They are written with the plain names, so their `import` statements are translated: each of them
has builtins with an `__import__` that does it.

This module needs nothing but the standard library of Python 3.10, and is loaded by its location.
"""

import builtins
import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

PRIVATE: Final = "_nereid"
CLIENT: Final = "nereid_client"
NAMES: Final = ("app", "backends", "deployments", "nereid")


def use_private_names(root: str) -> None:
    """Load the server's packages, which are in `root`, by private names from now on, and hide the plain ones.

    Called before any of them is imported. The client library keeps its name: models may use it.
    """
    package = ModuleType(PRIVATE)
    package.__path__ = [root]
    sys.modules[PRIVATE] = package
    sys.meta_path.insert(0, _Finder(root))
    if find_spec(CLIENT) is None:  # its own distribution is not installed
        sys.modules[CLIENT] = client = ModuleType(CLIENT)
        client.__path__ = [str(Path(root, "client", CLIENT))]


class _Finder(MetaPathFinder):
    """Finds the server's modules by private names, and by the plain names only what is not the server's."""

    def __init__(self, root: str) -> None:
        self._folders = {str(Path(root, name)) for name in NAMES}
        self._builtins = {**vars(builtins), "__import__": _import}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.startswith(f"{PRIVATE}."):
            return self._own(PathFinder.find_spec(name, path))
        if name in NAMES:
            return self._of_others(name)
        return None

    def _own(self, spec: ModuleSpec | None) -> ModuleSpec | None:
        if spec is not None and spec.loader is not None:
            spec.loader = _Translating(spec.loader, self._builtins)
        return spec

    def _of_others(self, name: str) -> ModuleSpec:
        for entry in list(sys.path):
            spec = PathFinder.find_spec(name, [entry])
            # A folder without __init__.py is a package only where nothing else is one.
            if spec is not None and spec.origin is not None and not self._is_own(spec):
                return spec
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)

    def _is_own(self, spec: ModuleSpec) -> bool:
        found = {str(Path(folder)) for folder in spec.submodule_search_locations or ()}
        # An installed server has the other packages within `nereid`.
        return bool(found & self._folders) or any(Path(folder, "_server").is_dir() for folder in found)


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
