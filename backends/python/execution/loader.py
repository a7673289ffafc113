"""Import of a model's `model.py` as Triton's stub does it, and its complete removal.

The module's name is `<version>.model`, and `model` for a Python-based backend; the version's and the model's
directory are appended to `sys.path`. A process serves one Python model, but imports the module for
auto-completion as well as for the instance, so loads of the same file share the import and are counted.
"""

import sys
import threading
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from app.core.errors import InferError, invalid_arg, unavailable
from backends.python.api import model_directory, pb_utils, server_api
from backends.python.api.errors import loading_failed
from backends.python.execution.instance import PythonInstance

OUR_FOLDER = str(Path(__file__).parents[1])

_lock = threading.RLock()
_loaded: dict[Path, "_Loaded"] = {}


class _Loaded:
    def __init__(
        self, module: ModuleType, package: ModuleType | None, paths: list[str], directory: str
    ) -> None:
        self.module = module
        self.directory = directory
        self.package = package
        self.paths = paths
        self.users = 1


def acquire(model: PythonInstance) -> Any:
    """Import the model's file, unless it is imported, and return its class `TritonPythonModel`.

    Raises:
        InferError: UNAVAILABLE when there is no such file, INTERNAL with the text and place of an exception
            of the import.
    """
    path = Path(model.file)
    with _lock:
        if path in _loaded:
            _loaded[path].users += 1
        else:
            _loaded[path] = _import(model, path)
            model_directory.push(_loaded[path].directory)
        try:
            return _loaded[path].module.TritonPythonModel
        except AttributeError as error:
            release(model)
            raise loading_failed(error, OUR_FOLDER) from error


def release(model: PythonInstance) -> None:
    """Undo one `acquire`; the last one removes the module, and those beside it, from the process."""
    path = Path(model.file)
    with _lock:
        loaded = _loaded.get(path)
        if loaded is None:
            return
        loaded.users -= 1
        if not loaded.users:
            del _loaded[path]
            model_directory.remove(loaded.directory)
            _remove(loaded)


def _import(model: PythonInstance, path: Path) -> _Loaded:
    if not path.is_file():
        raise unavailable(f"Python model file not found in '{path}'")
    _register_utils()
    package = _package(model, path)
    module_name = f"{package.__name__}.{path.stem}" if package else path.stem
    spec = spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise invalid_arg(f"model file '{path.name}' of model '{model.model_name}' is not a Python file")
    module = module_from_spec(spec)
    directory = str(Path(model.directory) / model.version)
    paths = list(dict.fromkeys((str(path.parent), directory, model.directory)))
    loaded = _Loaded(module, package, paths, directory)
    # As in Triton's stub: a model that parses arguments must not find those of the process that executes it.
    sys.argv = [""]
    sys.path.extend(paths)
    sys.modules[module_name] = module
    if package is not None:
        sys.modules[package.__name__] = package
    try:
        with server_api.no_calls(f"the import of {path.name}"):
            spec.loader.exec_module(module)
    except BaseException as error:
        _remove(loaded)
        if isinstance(error, InferError | Exception | SystemExit):
            raise loading_failed(error, OUR_FOLDER) from error
        raise
    return loaded


def _package(model: PythonInstance, path: Path) -> ModuleType | None:
    """Return the version directory as a package; None for a Python-based backend, whose module is `model`."""
    if not path.is_relative_to(model.directory):
        return None
    package = ModuleType(model.version)
    package.__path__ = [str(path.parent)]
    return package


def _register_utils() -> None:
    sys.modules["triton_python_backend_utils"] = pb_utils
    # Triton's module has a compiled half, which some models import by name.
    sys.modules["c_python_backend_utils"] = pb_utils


def _remove(loaded: _Loaded) -> None:
    folders = tuple(folder + "/" for folder in loaded.paths)
    for folder in loaded.paths:
        if folder in sys.path:
            sys.path.remove(folder)
    for name, module in list(sys.modules.items()):
        # The next model may import modules of the same names from its own folders.
        origin = str(getattr(module, "__file__", None))
        if module is loaded.package or origin.startswith(folders):
            del sys.modules[name]
