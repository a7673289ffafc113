"""The program of a process that executes an instance of a Python model.

`<environment>/bin/python worker_main.py DESCRIPTOR NAME [compiled]`, where the descriptor is a socket to the
replica and the name is the first instance's, for listings of processes; with `compiled`, C splits and joins
strings if it was compiled for this Python. The environment may have the model's packages and none of ours, so
our modules are found by their location, and `sys.path` stays the environment's.
The syntax here is that of Python 3.6, so that an interpreter that is too old can report it.
"""

import importlib
import importlib.util
import os
import sys
import types

OLDEST = (3, 10)
COMPILED = "compiled"


def fail(text: str) -> None:
    """Print why nothing can be executed, and end the process."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
    os._exit(1)


def find_our_modules() -> None:
    """Make our modules importable by private names."""
    sys.path.pop(0)  # the folder of this file, whose modules the model must not find
    root = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
    path = os.path.join(root, "app", "core", "installed", "private_packages.py")
    load("private_packages", path).use_private_names(root)
    for name in ("app", "backends"):  # without what their __init__.py imports, which the environment may lack
        package = types.ModuleType("_nereid." + name)
        package.__path__ = [os.path.join(root, name)]
        sys.modules[package.__name__] = package


def load(name: str, path: str) -> types.ModuleType:
    """Execute a file as a module that nobody can import."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def import_worker() -> types.ModuleType:
    """Import the worker, with a replacement for `msgspec`, which the environment may not have."""
    structs = importlib.import_module("_nereid.backends.python.execution.structs")
    worker: types.ModuleType = structs.import_ours("backends.python.worker.worker")
    return worker


def main() -> None:
    """Serve the replica until either process ends."""
    if sys.version_info < OLDEST:
        version = ".".join(map(str, sys.version_info[:3]))
        fail(f"Python {version} of {sys.prefix} is too old: 3.10 is the oldest that works")
    find_our_modules()
    try:
        import numpy  # noqa: F401
    except ImportError as error:
        fail(f"the environment {sys.prefix} has no numpy, which every model needs: {error}")
    import_worker().run(int(sys.argv[1]), COMPILED in sys.argv[3:])


if __name__ == "__main__":
    main()
