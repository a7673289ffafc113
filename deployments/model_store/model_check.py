"""The check of a model's files before a replica is started: what is missing, or is not what it seems.

Texts begin with Triton's, as its backends word them, and go on with what was found and what helps.
"""

import os
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.backend_facts import platforms
from app.core.config.normalise import ENSEMBLE
from app.core.errors import InferError, invalid_arg, unavailable
from app.core.files.paths import path_inside
from backends.description import BackendDescription, ModelFormat
from backends.model_files import ModelFile, read_file
from backends.registry.descriptions import described, descriptions
from backends.registry.file_kinds import describe, foreign
from backends.registry.loading import backend_names, unknown_backend
from backends.registry.place import LIBRARY, BackendPlace
from deployments.model_store.layout import ModelEntry, models_in

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
    place = BackendPlace.of(config, backends, (directory, entry.directory))
    if place.names_library and not place.is_custom:
        raise _missing_library(config, (*place.model_folders, *([place.folder] if place.folder else ())))
    if not place.is_known:
        raise _unknown_backend(config.backend, files_in(directory), backends)
    if place.python_file or place.is_custom or config.cc_model_filenames:
        return  # its code chooses among several files
    _check_file(directory, config, described(config.backend), remote)


def _unknown_platform(config: mc.ModelConfig) -> InferError:
    known = [*platforms(descriptions()), ENSEMBLE]
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
    aliased = [each.name for each in descriptions() if name.lower() in each.aliases]
    close = aliased or get_close_matches(name.lower(), known, n=1, cutoff=0.7)
    return f" Did you mean '{close[0]}'?" if close else ""


def _check_file(directory: Path, config: mc.ModelConfig, backend: BackendDescription, remote: bool) -> None:
    name = _model_file(directory, config, backend)
    path = directory / name
    if not name:
        return
    if not path.exists():
        fault = _format(config, backend).missing.format(path=path, model=config.name)
        raise unavailable(f"{fault}. {found_in(directory)}{_other_name(config)}")
    if not remote and path.is_file() and (fault := foreign(read_file(path), config.backend)):
        raise invalid_arg(f"backend '{config.backend}' cannot load '{path}'. {fault}")


def _model_file(directory: Path, config: mc.ModelConfig, backend: BackendDescription) -> str:
    """Return the name of a model's file; "" for a backend that says nothing of it."""
    if backend.model_file is not None:
        return backend.model_file(config, os.listdir(directory) if directory.is_dir() else [])
    if not backend.formats:
        return ""
    return config.default_model_filename or backend.formats[0].file_name


def _format(config: mc.ModelConfig, backend: BackendDescription) -> ModelFormat:
    declared = (each for each in backend.formats if each.platform == config.platform)
    return next(declared, backend.formats[0] if backend.formats else ModelFormat(""))


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
