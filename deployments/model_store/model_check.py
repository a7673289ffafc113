"""The check of a model's files before a replica is started: what is missing, or is not what it seems.

Texts begin with Triton's, as its backends word them, and go on with what was found and what helps.
"""

import os
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.normalise import BACKEND_OF_PLATFORM, ENSEMBLE
from app.core.errors import InferError, invalid_arg, unavailable
from app.core.paths import path_inside
from backends import (
    LIBRARY,
    backend_names,
    is_custom,
    is_known,
    names_library,
    python_based_file,
    unknown_backend,
)
from backends.fil.formats import file_name
from backends.file_kinds import ModelFile, describe, foreign, read_file
from deployments.model_store.layout import ModelEntry, models_in

_MODEL_FILES: Final = {
    "onnxruntime": "model.onnx",
    "openvino": "model.xml",
    "pytorch": "model.pt",
    "tensorflow": "model.savedmodel",
    "tensorrt": "model.plan",
    "python": "model.py",
    "fil": "",
}
"""What the built-in backends load, if the configuration names nothing else; fil: by a parameter."""
_ALIASES: Final = {
    "onnx": "onnxruntime",
    "ort": "onnxruntime",
    "ov": "openvino",
    "torch": "pytorch",
    "libtorch": "pytorch",
    "torchscript": "pytorch",
    "tf": "tensorflow",
    "trt": "tensorrt",
    "xgboost": "fil",
    "lightgbm": "fil",
    "treelite": "fil",
    "py": "python",
}
"""Names that people give to backends."""
_SHOWN: Final = 8


def check_model(
    entry: ModelEntry, config: mc.ModelConfig, version: int, backends: Path | None, remote: bool = False
) -> None:
    """Check the backend's name and the model's file of one version; reads the disk.

    Args:
        entry: the model.
        config: its configuration, with the backend inferred.
        version: one of its versions.
        backends: the directory of custom backends.
        remote: the files are empty stand-ins, of which only the names count.

    Raises:
        InferError: INVALID_ARG for an unknown platform or backend, or a file that is foreign to its backend;
            UNAVAILABLE for a missing file.
    """
    if config.platform == ENSEMBLE:
        return
    directory = entry.directory / str(version)
    if not config.backend:
        raise _unknown_platform(config)
    folders = (directory, entry.directory)
    where = (config.backend, backends, config.runtime, folders)
    if names_library(config.backend, config.runtime) and not is_custom(*where):
        raise _missing_library(config, (*folders, *([backends / config.backend] if backends else ())))
    if not is_known(*where):
        raise _unknown_backend(config.backend, files_in(directory), backends)
    ours = config.backend in _MODEL_FILES and not is_custom(*where)
    if python_based_file(*where):
        return  # its code chooses among several files
    if ours and not config.cc_model_filenames:
        _check_file(directory, config, remote)


def _unknown_platform(config: mc.ModelConfig) -> InferError:
    known = [*BACKEND_OF_PLATFORM, ENSEMBLE]
    text = f"unexpected platform type '{config.platform}' for {config.name}."
    return invalid_arg(f"{text}{_did_you_mean(config.platform, known)} Platforms: {', '.join(known)}.")


def _missing_library(config: mc.ModelConfig, folders: Iterable[Path]) -> InferError:
    for folder in folders:
        if (folder / config.runtime).exists() and path_inside(folder, config.runtime) is None:
            return invalid_arg(
                f"backend library name '{config.runtime}' escapes backend directory '{folder}', for model "
                f"'{config.name}', check model config runtime field"
            )
    searched = "".join(f"'{folder}' " for folder in folders)
    text = (
        f"unable to find backend library '{config.runtime}' for model '{config.name}', searched: {searched}"
    )
    if LIBRARY.fullmatch(config.runtime):
        return invalid_arg(text)
    return invalid_arg(
        f"{text}; a library that 'runtime' names is called libtriton_<name>.so, without folders"
    )


def _unknown_backend(name: str, files: list[ModelFile], backends: Path | None) -> InferError:
    known = backend_names(backends)
    parts = [unknown_backend(name).message + _did_you_mean(name, known), describe(files)]
    return invalid_arg(" ".join(filter(None, [*parts, f"Backends here: {', '.join(known)}."])))


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    alias = _ALIASES.get(name.lower())
    close = [alias] if alias else get_close_matches(name.lower(), known, n=1, cutoff=0.7)
    return f" Did you mean '{close[0]}'?" if close else ""


def _check_file(directory: Path, config: mc.ModelConfig, remote: bool) -> None:
    path = directory / _model_file(directory, config)
    if not path.exists():
        raise unavailable(f"{_missing(path, config)}. {found_in(directory)}{_other_name(config)}")
    if remote or not path.is_file() or config.backend == "python":
        return
    if fault := foreign(read_file(path), config.backend):
        raise invalid_arg(f"backend '{config.backend}' cannot load '{path}'. {fault}")


def _model_file(directory: Path, config: mc.ModelConfig) -> str:
    if config.backend == "fil":
        names = os.listdir(directory) if directory.is_dir() else []
        return file_name(config, names)
    return config.default_model_filename or _MODEL_FILES[config.backend]


def _missing(path: Path, config: mc.ModelConfig) -> str:
    if config.backend == "python":
        return f"Python model file not found in '{path}'"
    if config.platform == "torch_aoti":
        return f'PyTorch inductor model file "{path}" is unreachable or inaccessible'
    what = "model" if config.backend == "openvino" else "model instance"
    return f"unable to find '{path}' for {what} '{config.name}'"


def _other_name(config: mc.ModelConfig) -> str:
    return f" A file of another name: 'default_model_filename' in {config.name}/config.pbtxt."


def found_for(entry: ModelEntry) -> str:
    """Return a sentence about the files by which a model's backend is known, or about missing versions."""
    if entry.versions:
        return found_in(entry.directory / min(map(str, entry.versions)))
    return versions_of(entry)


def versions_of(entry: ModelEntry) -> str:
    """Return a sentence about the versions that a model has."""
    if entry.versions:
        return f"Versions in '{entry.directory}': {', '.join(map(str, entry.versions))}."
    if models := models_in(entry.directory):
        return f"'{entry.directory}' is a directory of models ({_some(models)}): name it as the repository."
    return (
        f"No version directory is in '{entry.directory}': the model's files belong into '{entry.name}/1/', "
        f"or another number. {found_in(entry.directory)}"
    )


def found_in(directory: Path) -> str:
    """Return a sentence about what is in a directory, and about each file of which something is known."""
    files = files_in(directory)
    names = _some([f"'{file.name}'" for file in files])
    listed = f"Found in '{directory}': {names or 'nothing'}."
    return " ".join(filter(None, [listed, describe(files)]))


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def files_in(directory: Path) -> list[ModelFile]:
    """Return the files and directories in a directory, by name; none when it cannot be read."""
    try:
        found = [read_file(directory / name) for name in sorted(os.listdir(directory)) if name[0] != "."]
    except OSError:
        return []
    # An empty file may stand for one in a remote repository: nothing is known of its content.
    return [file._replace(head=file.head or None) for file in found]
