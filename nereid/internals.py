"""Import of the server's own packages by their location instead of by `sys.path`."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).resolve().parent
# A wheel has the packages inside this one (setup.py), so that it installs no `app`; a checkout beside it.
ROOT: Final = _HERE / "_server" if (_HERE / "_server").is_dir() else _HERE.parent
PACKAGES: Final = ("app", "backends", "deployments")
CLIENT: Final = ROOT / "client" / "nereid_client"
"""The client library: tools and models use it, also where its own distribution is not installed."""


def load_internals() -> None:
    """Make `app`, `backends` and `deployments` mean the server's packages here; find `nereid_client` too.

    Ray puts the directory in which a driver was started at the front of its workers' `sys.path`, where a
    package may have the same name.

    Raises:
        ImportError: a package of such a name, but not the server's, is loaded already.
    """
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


def _load(name: str, folder: Path) -> None:
    spec = spec_from_file_location(name, folder / "__init__.py", submodule_search_locations=[str(folder)])
    if spec is None or spec.loader is None:
        raise ImportError(f"no package at {folder}")
    module = module_from_spec(spec)
    sys.modules[name] = module  # before it is executed: its modules import each other by this name
    spec.loader.exec_module(module)
