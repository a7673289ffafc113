"""Lookup of backends by name: in a backend directory, in installed packages, and built in.

Importing this package imports no framework; a backend's module is imported when a model first asks for it.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import EntryPoint, distributions
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from mmap import ACCESS_READ, mmap
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from app.core.errors import InferError, internal, invalid_arg, unsupported
from app.core.installation import install_command
from app.core.own_modules import import_own
from backends.frameworks import FRAMEWORKS, PACKAGED

if TYPE_CHECKING:
    from backends.base import Backend, Model

ENTRY_POINT_GROUP: Final = "nereid.backends"

BUILT_IN: Final[dict[str, str]] = {
    "onnxruntime": "backends.onnxruntime.backend:OnnxRuntimeBackend",
    "pytorch": "backends.pytorch.backend:TorchBackend",
    "tensorflow": "backends.tensorflow.backend:TensorFlowBackend",
    "tensorrt": "backends.tensorrt.backend:TensorRtBackend",
    "fil": "backends.fil.backend:FilBackend",
    "openvino": "backends.openvino.backend:OpenVinoBackend",
    "python": "backends.python.backend:PythonBackend",
    "rtsp": "backends.rtsp.backend:RtspBackend",
    "bytetrack": "backends.bytetrack.backend:ByteTrackBackend",
    "identity": "backends.teaching.identity:IdentityBackend",
    "repeat": "backends.teaching.repeat:RepeatBackend",
    "square": "backends.teaching.square:SquareBackend",
    "sequence": "backends.teaching.sequence:SequenceBackend",
    "dyna_sequence": "backends.teaching.sequence:DynaSequenceBackend",
    "iterative_sequence": "backends.teaching.iterative_sequence:IterativeSequenceBackend",
}

# Built-in backend and `runtime`: the file whose `TritonPythonModel` executes such models.
_PYTHON_RUNTIMES: Final = {("pytorch", "model.py"): Path(__file__).parent / "pytorch" / "eager" / "model.py"}

ENVIRONMENT: Final = "environment"
"""The setting that says where a backend executes models: the path of an environment, "own" or `SERVER`."""

SERVER: Final = "server"
"""The replica."""

HOSTED: Final = ("fil", "onnxruntime", "openvino", "pytorch", "tensorflow")
"""Built-in backends that a process of another environment can execute too."""

_PYTHON: Final = "model.py"
"""The `runtime` of a model whose backend is Python-based."""

LIBRARY: Final = re.compile(r"libtriton_[^/]*\.so")
"""Libraries that `runtime` may name. Triton takes any file; a load request may bring others than these."""

_NO_LIBRARY: Final = frozenset({"python"})
"""Backends that are ours even where Triton's libraries are: that of `python` starts processes itself."""


def find_backend(
    name: str, backend_directory: Path | None = None, runtime: str = "", model_folders: Sequence[Path] = ()
) -> "type[Backend]":
    """Find the class for `backend: "<name>"` and, for a built-in one, `runtime`.

    The first of these that has the name: `<backend_directory>/<name>/backend.py`, which defines
    `TritonBackend`; a library, see `library_file`; `<backend_directory>/<name>/model.py`, one of Triton's
    Python-based backends: it defines `TritonPythonModel`, which executes every model whose `common_file` it
    is; an installed package's entry point in group `nereid.backends`; the built-in backends.

    Raises:
        InferError: INVALID_ARG for an unknown name or one that is no plain file name; UNSUPPORTED when
            its framework is not installed; INTERNAL when its module fails to import.
    """
    if name in ("", ".", "..") or any(character in name for character in "/\\\0"):
        raise invalid_arg(f"backend library name '{name}' escapes backend directory")
    return (
        _from_directory(name, backend_directory)
        or _from_library(name, backend_directory, runtime, model_folders)
        or _python_based(name, backend_directory)
        or _from_entry_point(name)
        or _from_built_in("python" if _python_file(name, runtime) else _unless_library(name, runtime))
        or _unknown(name)
    )


def runs_elsewhere(
    name: str,
    backend_directory: Path | None,
    runtime: str,
    model_folders: Sequence[Path],
    settings: Mapping[str, str],
) -> bool:
    """Whether a process of another environment executes models of a built-in backend, by `environment`.

    Raises:
        InferError: INVALID_ARG where that is asked of a backend that cannot.
    """
    choice = settings.get(ENVIRONMENT, SERVER)
    if choice == SERVER:
        return False
    custom = is_custom(name, backend_directory, runtime, model_folders)
    if custom or (name not in PACKAGED and name not in HOSTED):
        raise invalid_arg(
            f"--backend-config={name},{ENVIRONMENT}={choice}: only backends of 'nereid backends list' have"
            " environments"
        )
    return _python_file(name, runtime) is None


def hosted_backend(name: str) -> "type[Backend]":
    """Return the class that executes a backend of `HOSTED` in a process of another environment."""
    from backends.hosted.backend import hosted

    return hosted(name, BUILT_IN[name], {**FRAMEWORKS[name][0], "google": "protobuf"}, requirements_of(name))


def requirements_of(name: str) -> Path:
    """Return the file of the packages, all pinned, of a backend of ours in an environment of its own."""
    folder = PACKAGED[name].parent if name in PACKAGED else Path(__file__).parent / name
    return folder / "requirements.txt"


def backend_names(backend_directory: Path | None = None) -> list[str]:
    """Return the names that `find_backend` finds, without those whose framework is not installed."""
    folders = backend_directory.iterdir() if backend_directory and backend_directory.is_dir() else ()
    custom = {folder.name for folder in folders if is_custom(folder.name, backend_directory)}
    offered = {entry_point.name for entry_point in entry_points()}
    return sorted({*custom, *offered, *PACKAGED, *filter(_is_installed, BUILT_IN)})


def is_known(
    name: str, backend_directory: Path | None = None, runtime: str = "", model_folders: Sequence[Path] = ()
) -> bool:
    """Return whether `find_backend` would look for a class of this name; imports nothing."""
    ours = name in BUILT_IN or name in PACKAGED
    return ours or is_custom(name, backend_directory, runtime, model_folders)


def is_custom(
    name: str, backend_directory: Path | None = None, runtime: str = "", model_folders: Sequence[Path] = ()
) -> bool:
    """Return whether a model, a backend directory or a package has a backend that goes before ours."""
    own = backend_directory is not None and _has_backend(backend_directory / name)
    library = library_file(name, backend_directory, runtime, model_folders)
    return own or library is not None or any(_offered(name))


def backend_path(name: str, backend_directory: Path | None = None) -> str:
    """Return the file or package that has a backend, for a person; imports nothing."""
    own = backend_directory / name / "backend.py" if backend_directory else None
    if own is not None and own.is_file():
        return str(own)
    if file := library_file(name, backend_directory) or python_based_file(name, backend_directory):
        return str(file)
    if offered := next(_offered(name), None):
        return offered.value
    return str(Path(__file__).parent / BUILT_IN[name].split(".")[1]) if name in BUILT_IN else ""


def library_file(
    name: str, backend_directory: Path | None = None, runtime: str = "", model_folders: Sequence[Path] = ()
) -> Path | None:
    """Return the absolute path of a backend's library, written in C or C++ for Triton; None for none.

    It is called `runtime`, or `libtriton_<name>.so`. The first in Triton's order: in `model_folders`, a
    model's version directory and its own, and then in `<backend_directory>/<name>`, unless there is a
    `backend.py`.
    """
    own = backend_directory / name if backend_directory and name else None
    if not name or name in _NO_LIBRARY or (own and (own / "backend.py").is_file()):
        return None
    if names_library(name, runtime) and not LIBRARY.fullmatch(runtime):
        return None
    folders = (*model_folders, *([own] if own else ()))
    paths = (folder / (runtime or f"libtriton_{name}.so") for folder in folders)
    return next((path.absolute() for path in paths if runtime != _PYTHON and path.is_file()), None)


def names_library(name: str, runtime: str) -> bool:
    """Return whether `runtime` of a configuration names a library that is not the backend's usual one."""
    return runtime not in ("", _PYTHON, f"libtriton_{name}.so")


def _unless_library(name: str, runtime: str) -> str:
    """Return the name, or "" for a model that wants a library, which no built-in backend stands for."""
    return "" if names_library(name, runtime) else name


def _has_backend(folder: Path) -> bool:
    return (folder / "backend.py").is_file() or (folder / "model.py").is_file()


def _is_installed(name: str) -> bool:
    modules, _ = FRAMEWORKS.get(name, ({}, ""))
    return all(find_spec(module) is not None for module in modules)


def _from_directory(name: str, backend_directory: Path | None) -> "type[Backend] | None":
    path = backend_directory / name / "backend.py" if backend_directory else None
    if path is None or not path.is_file():
        return None
    return _checked(name, getattr(_load_file(name, path), "TritonBackend", None), f"{path} TritonBackend")


def _from_library(
    name: str, backend_directory: Path | None, runtime: str, model_folders: Sequence[Path]
) -> "type[Backend] | None":
    path = library_file(name, backend_directory, runtime, model_folders)
    if path is None:
        return None
    return _checked(name, import_own("backends.cpp.backend").library_backend(name, path), str(path))


def _python_based(name: str, backend_directory: Path | None) -> "type[Backend] | None":
    return _from_built_in("python") if python_based_file(name, backend_directory) else None


def python_based_file(
    name: str, backend_directory: Path | None, runtime: str = "", model_folders: Sequence[Path] = ()
) -> Path | None:
    """Return the absolute path of a Python-based backend's model.py; None for any other backend."""
    if library_file(name, backend_directory, runtime, model_folders):
        return None
    folder = backend_directory / name if backend_directory and name else None
    if folder is None or not _has_backend(folder):
        return None if is_custom(name, None) else _python_file(name, runtime)
    return None if (folder / "backend.py").is_file() else (folder / "model.py").absolute()


def _python_file(name: str, runtime: str) -> Path | None:
    return PACKAGED.get(name) or _PYTHON_RUNTIMES.get((name, runtime))


def is_ours(file: Path) -> bool:
    """Whether a file is that of a Python-based backend of ours."""
    return file in (*PACKAGED.values(), *_PYTHON_RUNTIMES.values())


def inspection_of(file: Path) -> "Callable[[Model], None] | None":
    """Return what checks a model without running it, for a Python-based backend of ours; None for another."""
    if not is_ours(file):
        return None
    folder = file.parent.relative_to(Path(__file__).parent.parent)
    found: Callable[[Model], None] = import_own(".".join((*folder.parts, "inspection"))).inspect
    return found


def executes_python(
    name: str, backend_directory: Path | None, runtime: str = "", model_folders: Sequence[Path] = ()
) -> bool:
    """Whether a backend's models are executed by a `TritonPythonModel`, theirs or the backend's."""
    return name == "python" or python_based_file(name, backend_directory, runtime, model_folders) is not None


def may_call_models(
    name: str, backend_directory: Path | None, runtime: str = "", model_folders: Sequence[Path] = ()
) -> bool:
    """Whether a backend's models may call others: those in Python, and libraries that name the functions."""
    library = library_file(name, backend_directory, runtime, model_folders)
    if library is None:
        return executes_python(name, backend_directory, runtime, model_folders)
    if not library.stat().st_size:
        return False
    with library.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        return content.find(b"TRITONSERVER_Server") >= 0


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
        raise internal(f"unable to load backend library for backend '{name}': {error}") from error
    return module


def _from_entry_point(name: str) -> "type[Backend] | None":
    for entry_point in _offered(name):
        try:
            return _checked(name, entry_point.load(), entry_point.value)
        except ImportError as error:
            raise internal(f"unable to load backend library for backend '{name}': {error}") from error
    return None


def _offered(name: str) -> Iterator[EntryPoint]:
    return (each for each in entry_points() if each.name == name)


def entry_points() -> Iterator[EntryPoint]:
    """Find the backends that installed packages offer.

    Reading those of 200 packages takes 25 ms: it is done again when their directory has changed.
    """
    for folder in sys.path:
        try:
            changed = os.stat(folder or os.curdir).st_mtime_ns
        except OSError:
            continue
        yield from _entry_points_in(folder, changed)


@lru_cache(64)
def _entry_points_in(folder: str, changed: int) -> tuple[EntryPoint, ...]:
    packages = distributions(path=[folder])
    return tuple(
        each for package in packages for each in package.entry_points if each.group == ENTRY_POINT_GROUP
    )


def _from_built_in(name: str) -> "type[Backend] | None":
    if name not in BUILT_IN:
        return None
    module_name, _, attribute = BUILT_IN[name].partition(":")
    try:
        return _checked(name, getattr(import_own(module_name), attribute), BUILT_IN[name])
    except ImportError as error:
        titles, extra = FRAMEWORKS.get(name, ({}, ""))
        if error.name in titles:
            raise unsupported(
                f"backend '{name}' needs {titles[error.name]}, which is not installed; install the extra:"
                f" {install_command(extra)}"
            ) from error
        raise internal(f"unable to load backend library for backend '{name}': {error}") from error


def _checked(name: str, found: Any, where: str) -> "type[Backend]":
    from backends.base import Backend

    if isinstance(found, type) and issubclass(found, Backend):
        return found
    raise internal(f"backend '{name}': {where} is not a subclass of backends.base.Backend")


def _unknown(name: str) -> "type[Backend]":
    raise unknown_backend(name)


def unknown_backend(name: str) -> InferError:
    """Return Triton's error for a name that no backend has."""
    return invalid_arg(
        f"unable to find backend library for backend '{name}', try specifying runtime on the model"
        " configuration."
    )
