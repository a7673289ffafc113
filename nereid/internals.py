"""Import of the server's own packages by their location instead of by `sys.path`."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

_HERE: Final = Path(__file__).resolve().parent
# A wheel has the packages inside this one (setup.py), so that it installs no `app`; a checkout beside it.
ROOT: Final = _HERE / "_server" if (_HERE / "_server").is_dir() else _HERE.parent
PACKAGES: Final = ("app", "backends", "deployments")
CLIENT: Final = ROOT / "client" / "nereid_client"
"""The client library: tools and models use it, also where its own distribution is not installed."""
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
        folder = ROOT / name
        loaded = sys.modules.get(name)
        if loaded is None:
            _load(name, folder)
        elif folder not in [Path(path).resolve() for path in getattr(loaded, "__path__", ())]:
            raise ImportError(
                f"the package '{name}' of this process is {loaded}, not that of the Nereid server: start the"
                " server in a process of its own, with the command `nereid`"
            )
    if CLIENT.name not in sys.modules:  # the client's own distribution may be loaded: it is the same package
        _load(CLIENT.name, CLIENT)


def set_aside(*others: str) -> None:
    """Make the server's packages, and these modules, look as if nothing had imported them.

    A process that was prepared may so become one of the server's, by `load_internals`, or have packages of
    these names itself.
    """
    for name in [name for name in sys.modules if _package(name) in (*PACKAGES, CLIENT.name)]:
        _set_aside[name] = sys.modules.pop(name)
    for name in others:
        del sys.modules[name]


def _package(module: str) -> str:
    return module.partition(".")[0]


def _load(name: str, folder: Path) -> None:
    spec = spec_from_file_location(name, folder / "__init__.py", submodule_search_locations=[str(folder)])
    if spec is None or spec.loader is None:
        raise ImportError(f"no package at {folder}")
    module = module_from_spec(spec)
    sys.modules[name] = module  # before it is executed: its modules import each other by this name
    spec.loader.exec_module(module)
