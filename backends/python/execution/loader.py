"""Import of a model's `model.py` as Triton's stub does it, and its complete removal.

The module's name is `<version>.model`, and `model` for a Python-based backend; the version's and the model's
directory are appended to `sys.path`. A module is imported for auto-completion as well as for the instance, so
loads of the same file share the import and are counted. A replica serves one Python model; in a process that
serves several, each is imported as if it were alone, so that helper modules may have the same names.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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
_loaded: list["_Loaded"] = []


class _Loaded:
    """A module that is imported, for the instances that use it."""

    def __init__(
        self, module: ModuleType, package: ModuleType | None, paths: list[str], directory: str
    ) -> None:
        self.module = module
        self.directory = directory
        self.package = package
        self.paths = paths
        self.users: list[PythonInstance] = []

    def serves(self, model: PythonInstance) -> bool:
        """Whether it is of the same load as an instance: that of another instance beside it."""
        return any(
            user.file == model.file and user.config == model.config and user.name != model.name
            for user in self.users
        )


def acquire(model: PythonInstance) -> Any:
    """Import the model's file, unless that is done for another instance, and return `TritonPythonModel`.

    Raises:
        InferError: UNAVAILABLE when there is no such file, INTERNAL with the text and place of an exception
            of the import.
    """
    with _lock:
        loaded = next((each for each in _loaded if each.serves(model)), None)
        if loaded is None:
            loaded = _import(model, Path(model.file))
            _loaded.append(loaded)
            model_directory.push(loaded.directory)
        loaded.users.append(model)
        model_directory.use(loaded.directory)
        try:
            return loaded.module.TritonPythonModel
        except AttributeError as error:
            release(model)
            raise loading_failed(error, OUR_FOLDER) from error


def release(model: PythonInstance) -> None:
    """Undo one `acquire`; the last one removes the module, and those beside it, from the process."""
    with _lock:
        loaded = next((each for each in _loaded if any(user is model for user in each.users)), None)
        if loaded is None:
            return
        loaded.users = [user for user in loaded.users if user is not model]
        if not loaded.users:
            _loaded.remove(loaded)
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
    if model.ours:  # its imports are translated as those of this module, if they are
        vars(module)["__builtins__"] = vars(sys.modules[__name__])["__builtins__"]
    directory = str(Path(model.directory) / model.version)
    paths = list(dict.fromkeys((str(path.parent), directory, model.directory)))
    loaded = _Loaded(module, package, paths, directory)
    try:
        with _alone(), server_api.no_calls(f"the import of {path.name}"):
            sys.path.extend(paths)
            sys.modules[module_name] = module
            if package is not None:
                sys.modules[package.__name__] = package
            known = set(sys.path)
            spec.loader.exec_module(module)
            paths += [folder for folder in sys.path if folder not in known]  # of this model, too
    except BaseException as error:
        _remove(loaded)
        if isinstance(error, InferError | Exception | SystemExit):
            raise loading_failed(error, OUR_FOLDER) from error
        raise
    return loaded


@contextmanager
def _alone() -> Iterator[None]:
    """Hide other models from an import, and the arguments of the process, as in Triton's stub."""
    others: list[str] = []
    modules = {name: module for each in _loaded for name, module in _modules_of(each)}
    arguments, sys.argv = sys.argv, [""]
    # Compiled files beside a model would be a change of it, and are not noticed to be old within a second.
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    for folder in [folder for each in _loaded for folder in each.paths]:
        if folder in sys.path:
            sys.path.remove(folder)
            others.append(folder)
    for name in modules:
        sys.modules.pop(name)
    try:
        yield
    finally:
        sys.path.extend(others)
        for name, module in modules.items():
            sys.modules.setdefault(name, module)
        sys.argv = arguments
        sys.dont_write_bytecode = writes


def _modules_of(loaded: _Loaded) -> Iterator[tuple[str, ModuleType]]:
    """Find the modules of a model, those beside it, and its version directory as a package."""
    folders = tuple(folder + "/" for folder in loaded.paths)
    for name, module in sys.modules.copy().items():  # at once, whatever other threads import
        # Not by `getattr`, at which some modules import others. A package's content is found by its file.
        about = getattr(module, "__dict__", {})
        if getattr(about.get("__spec__"), "_initializing", False):
            continue  # another thread imports it, for an instance that starts, and would miss it
        if module is loaded.package or str(about.get("__file__")).startswith(folders):
            yield name, module


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
    for folder in loaded.paths:
        if folder in sys.path:
            sys.path.remove(folder)
    for name, module in list(_modules_of(loaded)):  # the next model may import modules of the same names
        if not any(
            module is other.module for other in _loaded
        ):  # a reload, which began before this one ended
            del sys.modules[name]
