"""Imports the class of a backend; says which backends there are, and where each executes."""

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from app.core.errors import InferError, internal, invalid_arg, unsupported
from app.core.installed.installation import install_command
from app.core.installed.own_modules import PREFIX
from backends.base import Backend
from backends.description import BackendDescription
from backends.registry.descriptions import described, descriptions, is_described
from backends.registry.entry_points import entry_points, is_description, offered
from backends.registry.place import BackendPlace

ENVIRONMENT: Final = "environment"
"""The setting that says where a backend executes models: the path of an environment, "own" or `SERVER`."""

SERVER: Final = "server"
"""The replica."""


def find_backend(place: BackendPlace) -> type[Backend]:
    """Find the class for `backend: "<name>"` and, for a built-in one, `runtime`.

    The first of these that has the name: `<backend_directory>/<name>/backend.py`, which defines
    `TritonBackend`; a library, see `BackendPlace.library`; `<backend_directory>/<name>/model.py`, one of
    Triton's Python-based backends: it defines `TritonPythonModel`, which executes every model whose
    `common_file` it is; an installed package's entry point in group `nereid.backends`; the built-in backends.

    Raises:
        InferError: INVALID_ARG for an unknown name or one that is no plain file name; UNSUPPORTED when
            its framework is not installed; INTERNAL when its module fails to import.
    """
    name = place.name
    if name in ("", ".", "..") or any(character in name for character in "/\\\0"):
        raise invalid_arg(f"backend library name '{name}' escapes backend directory")
    if file := place.own_file:
        return _checked(name, getattr(_load_file(name, file), "TritonBackend", None), f"{file} TritonBackend")
    if library := place.library:
        from backends.cpp.backend import library_backend

        return _checked(name, library_backend(name, library), str(library))
    if place.python_file:
        return _from_description(described("python"))
    for entry_point in offered(name):
        if not (is_description(entry_point) and is_described(name)):  # a faulty description tells its fault
            return _from_entry_point(name, entry_point)
    if place.names_library or not is_described(name):
        raise unknown_backend(name)
    return _from_description(described(name))


def hosted_backend(name: str) -> type[Backend]:
    """Return the class that executes a hosted backend in a process of another environment."""
    from backends.hosted.backend import hosted

    own = described(name)
    titles = {**own.modules, "google": "protobuf"}
    return hosted(name, own.class_place.removeprefix(PREFIX), titles, own.requirements)


def runs_elsewhere(place: BackendPlace, settings: Mapping[str, str]) -> bool:
    """Whether a process of another environment executes models of a described backend, by `environment`.

    Raises:
        InferError: INVALID_ARG where that is asked of a backend that cannot.
    """
    choice = settings.get(ENVIRONMENT, SERVER)
    if choice == SERVER:
        return False
    if place.is_custom or place.name not in with_environments():
        raise invalid_arg(
            f"--backend-config={place.name},{ENVIRONMENT}={choice}: only backends of 'nereid backends list'"
            " have environments"
        )
    return described(place.name).common_file(place.runtime) is None


def with_environments() -> list[str]:
    """Return the backends that may have an environment of their own."""
    return sorted(each.name for each in descriptions() if each.packaged or each.hosted)


def backend_names(directory: Path | None = None) -> list[str]:
    """Return the names that `find_backend` finds, without those whose framework is not installed."""
    folders = directory.iterdir() if directory and directory.is_dir() else ()
    custom = {folder.name for folder in folders if BackendPlace(folder.name, directory).is_custom}
    ours = {each.name for each in descriptions() if all(map(find_spec, each.modules))}
    return sorted({*custom, *(each.name for each in entry_points()), *ours})


def unknown_backend(name: str) -> InferError:
    """Return Triton's error for a name that no backend has."""
    return invalid_arg(
        f"unable to find backend library for backend '{name}', try specifying runtime on the model"
        " configuration."
    )


def _load_file(name: str, path: Path) -> ModuleType:
    """Import the file as a package of its own, so that it may import its neighbours relatively."""
    module_name = f"nereid_backend_{name}"
    loaded = sys.modules.get(module_name)
    if loaded is not None and loaded.__file__ == str(path):
        return loaded
    spec = spec_from_file_location(module_name, path, submodule_search_locations=[str(path.parent)])
    if spec is None or spec.loader is None:
        raise internal(f"unable to load backend library '{path}'")
    module = module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise _not_loaded(name, error) from error
    return module


def _from_entry_point(name: str, entry_point: EntryPoint) -> type[Backend]:
    try:
        return _checked(name, entry_point.load(), entry_point.value)
    except ImportError as error:
        raise _not_loaded(name, error) from error


def _from_description(own: BackendDescription) -> type[Backend]:
    module_name, _, attribute = own.class_place.partition(":")
    try:
        return _checked(own.name, getattr(import_module(module_name), attribute), own.class_place)
    except ImportError as error:
        if error.name is None or error.name not in own.modules:
            raise _not_loaded(own.name, error) from error
        help_ = f"; install the extra: {install_command(own.extra)}" if own.extra else ""
        raise unsupported(
            f"backend '{own.name}' needs {own.modules[error.name]}, which is not installed{help_}"
        ) from error


def _not_loaded(name: str, error: Exception) -> InferError:
    return internal(f"unable to load backend library for backend '{name}': {error}")


def _checked(name: str, found: Any, where: str) -> type[Backend]:
    if isinstance(found, type) and issubclass(found, Backend):
        return found
    raise internal(f"backend '{name}': {where} is not a subclass of backends.base.Backend")
