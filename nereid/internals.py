"""Import of the server's own packages by their location instead of by `sys.path`."""

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

NAME: Final = __name__.partition(".")[0]
"""This package, and the server's Serve application."""
_HERE: Final = Path(__file__).resolve().parent
# A wheel has the packages inside this one (setup.py), so that it installs no `app`; a checkout beside it.
ROOT: Final = _HERE / "_server" if (_HERE / "_server").is_dir() else _HERE.parent
PACKAGES: Final = ("app", "backends", "deployments")
CLIENT: Final = ROOT / "client" / "nereid_client"
"""The client library: tools and models use it, also where its own distribution is not installed."""
_PRIVATE: Final = "_nereid"
_set_aside: Final[dict[str, ModuleType]] = {}


def load_internals() -> None:
    """Make `app`, `backends` and `deployments` mean the server's packages here; find `nereid_client` too.

    Ray puts the directory in which a driver was started at the front of its workers' `sys.path`, where a
    package may have the same name.

    Raises:
        ImportError: a package of such a name, but not the server's, is loaded already.
    """
    loaded_already = set(sys.modules)
    for name, module in _set_aside.items():
        if _package(name) not in loaded_already:
            sys.modules[name] = module
    for name in PACKAGES:
        if name not in sys.modules:
            _load(name, ROOT / name)
        elif _is_of_others(name):
            raise ImportError(
                f"the package '{name}' of this process is {sys.modules[name]}, not that of the Nereid server:"
                " start the server in a process of its own, with the command `nereid`"
            )
    if CLIENT.name not in sys.modules:  # the client's own distribution may be loaded: it is the same package
        _load(CLIENT.name, CLIENT)


def is_replaced(name: str) -> bool:
    """Load the server's packages for a public module; return whether it is to execute nothing of its own.

    Where the program has packages of their names itself, loaded or not yet, the server's get private names,
    and so does a copy of the public module, which stands in its place: see
    `app/core/installed/private_packages.py`.
    """
    if name.startswith(f"{_PRIVATE}."):
        return False
    own = any(package in sys.modules and not _is_of_others(package) for package in PACKAGES)
    if own or not any(map(_is_of_others, PACKAGES)):
        load_internals()
        return False
    if _PRIVATE not in sys.modules:
        private_packages = _by_location("private_packages", ROOT / "app/core/installed/private_packages.py")
        private_packages.use_private_names(str(ROOT))
        for public in (NAME, f"{NAME}.errors", __name__):  # errors are those that a program catches
            sys.modules[f"{_PRIVATE}.{public}"] = import_module(public)
    sys.modules[name] = import_module(f"{_PRIVATE}.{name}")
    return True


def set_aside(*others: str) -> None:
    """Make the server's packages, and these modules, look as if nothing had imported them.

    A process that was prepared may so become one of the server's, by `load_internals`, or have packages of
    these names itself.
    """
    for name in [name for name in sys.modules if _package(name) in (*PACKAGES, CLIENT.name)]:
        _set_aside[name] = sys.modules.pop(name)
    for name in others:
        del sys.modules[name]
        package, _, own = name.rpartition(".")
        delattr(sys.modules[package], own)  # `from package import own` would not import it anew


def _package(module: str) -> str:
    return module.partition(".")[0]


def _is_of_others(name: str) -> bool:
    """Return whether a package is not the server's that is loaded, or that an import would find."""
    if (loaded := sys.modules.get(name)) is not None:
        folders = getattr(loaded, "__path__", ())
    elif (spec := PathFinder.find_spec(name)) is not None:
        folders = spec.submodule_search_locations or ()
    else:
        return False
    return ROOT / name not in [Path(folder).resolve() for folder in folders]


def _load(name: str, folder: Path) -> None:
    _by_location(name, folder / "__init__.py", [str(folder)])


def _by_location(name: str, path: Path, folders: list[str] | None = None) -> ModuleType:
    spec = spec_from_file_location(name, path, submodule_search_locations=folders)
    if spec is None or spec.loader is None:
        raise ImportError(f"no package at {path.parent}")
    module = module_from_spec(spec)
    if folders:
        sys.modules[name] = module  # before it is executed: its modules import each other by this name
    spec.loader.exec_module(module)
    return module
