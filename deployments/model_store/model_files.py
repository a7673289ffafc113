"""Reads the files of a model: its configuration and its labels.

A name in a configuration that leads out of its directory is refused. Files may be links to anywhere, but for
label files, which Triton refuses outside of the model's directory.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISREG
from typing import Final

from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import copied
from app.core.config.normalise import ENSEMBLE, refuse_ensemble_backend, without_instances
from app.core.config.text import MAX_CONFIG_BYTES, PLACEHOLDER, PLACEHOLDER_HINT, parse_pbtxt
from app.core.config.validation import validate_io
from app.core.errors import ErrorCode, InferError, internal, invalid_arg
from app.core.files.paths import path_inside
from app.core.hints import hinted
from backends.registry.configuration import infer_backend, validate_model
from deployments.model_store.layout import CONFIG_FILE, CONFIGS_DIRECTORY, ModelEntry, is_inside
from deployments.model_store.model_check import found_for

_PATH_CHARACTERS: Final = re.compile(r"[/\\\x00]")
MAX_LABEL_BYTES: Final = 64 << 20
"""The largest label file that is read."""


def read_config(entry: ModelEntry, config_name: str = "", auto_complete: bool = True) -> mc.ModelConfig:
    """Read a model's configuration; infer missing name, backend, platform and file name from its files.

    Args:
        entry: a usable entry.
        config_name: `--model-config-name`: `configs/<config_name>.pbtxt` if there, else `config.pbtxt`.
        auto_complete: whether a configuration may be missing.

    Raises:
        InferError: INTERNAL when the file cannot be read or parsed; INVALID_ARG when the name is not the
            directory's, a path leaves the model, or the backend cannot be inferred.
    """
    path = _config_path(entry, config_name)
    config = mc.ModelConfig()
    if path is not None:
        config = parse_pbtxt(read_text(path, MAX_CONFIG_BYTES), str(path))
    elif not auto_complete:
        raise _unreadable(entry.directory / CONFIG_FILE, "No such file or directory")
    return complete_config(entry, config)


def complete_config(entry: ModelEntry, config: mc.ModelConfig) -> mc.ModelConfig:
    """Infer missing fields from the model's files, and check that names and paths are the model's own.

    Raises:
        InferError: as `read_config`.
    """
    if not config.name or entry.directory.name != entry.name:  # a registered model has the name of its load
        config.name = entry.name
    refuse_ensemble_backend(config)
    try:
        config = infer_backend(config, version_listing(entry))
    except InferError as error:
        raise invalid_arg(f"{error.message} {found_for(entry)}") from None
    if config.name != entry.name:
        validate_model(without_instances(config))  # Triton looks at the name last
        text = (
            f"unexpected directory name '{entry.name}' for model '{config.name}', "
            "directory name must equal model name"
        )
        raise invalid_arg(hinted(text, PLACEHOLDER_HINT if PLACEHOLDER.search(config.name) else ""))
    check_paths(entry, config)
    return config


def refuse_faults(config: mc.ModelConfig, auto_complete: bool) -> None:
    """Check what no backend mends, so that nothing is started for it: to Triton such a model cannot be read.

    Args:
        config: with Triton's defaults.
        auto_complete: a backend may complete it.

    Raises:
        InferError: INVALID_ARG with Triton's text.
    """
    if auto_complete and not config.max_batch_size and config.HasField("dynamic_batching"):
        config = copied(config)
        config.ClearField("dynamic_batching")
    if config.backend or config.platform == ENSEMBLE:  # an unknown platform is told with those there are
        validate_model(config)
        if not auto_complete:
            validate_io(config)


def _config_path(entry: ModelEntry, config_name: str) -> Path | None:
    if _PATH_CHARACTERS.search(config_name) or config_name == "..":
        raise invalid_arg(f"invalid model config name {config_name!r}: give the name of a file in configs/")
    candidates = [entry.directory / CONFIG_FILE]
    if config_name:
        candidates.insert(0, entry.directory / CONFIGS_DIRECTORY / f"{config_name}.pbtxt")
    return next((path for path in candidates if os.path.lexists(path)), None)


def version_listing(entry: ModelEntry) -> frozenset[str]:
    """Return the names in the first version directory, directories with a "/" behind; empty without versions.

    "First" is alphabetical, "10" before "2", as Triton takes it when it looks for the model's file.
    """
    if not entry.versions:
        return frozenset()
    try:
        with os.scandir(entry.directory / min(map(str, entry.versions))) as found:
            return frozenset(item.name + "/" if os.path.isdir(item.path) else item.name for item in found)
    except OSError as error:
        raise internal(f"failed to open directory {entry.directory}: {error.strerror}") from None


def check_paths(entry: ModelEntry, config: mc.ModelConfig) -> None:
    """Check that the file names of a configuration stay inside the model; label files through links too.

    Label files, warmup data and initial states belong inside the model's directory, model files inside the
    version directory.

    Raises:
        InferError: UNSUPPORTED for a label file (Triton's text), otherwise INVALID_ARG.
    """
    for output in config.output:
        if output.label_filename:
            _label_path(entry, output)
    for field, name in _model_files(config):
        for version in entry.versions or (1,):
            base = entry.directory / str(version)
            if not _stays_inside(base, name):
                raise _leads_out(entry, field, name, "version directory")
    for field, folder, name in _data_files(config):
        base = entry.directory / folder
        if not _stays_inside(base, name):
            raise _leads_out(entry, field, name, f"directory '{folder}'")


def _leads_out(entry: ModelEntry, field: str, name: str, place: str) -> InferError:
    return invalid_arg(
        f"'{field}' of model '{entry.name}' is {name!r}, which leads out of the {place}; "
        "give a relative path that stays inside"
    )


def _model_files(config: mc.ModelConfig) -> Iterator[tuple[str, str]]:
    if config.default_model_filename:
        yield "default_model_filename", config.default_model_filename
    for name in config.cc_model_filenames.values():
        yield "cc_model_filenames", name


def _data_files(config: mc.ModelConfig) -> Iterator[tuple[str, str, str]]:
    for warmup in config.model_warmup:
        for tensor in warmup.inputs.values():
            if tensor.input_data_file:
                yield "input_data_file", "warmup", tensor.input_data_file
    for state in config.sequence_batching.state:
        for initial in state.initial_state:
            if initial.data_file:
                yield "data_file", "initial_state", initial.data_file


def _stays_inside(base: Path, name: str) -> bool:
    return "\\" not in name and path_inside(base, name) is not None


def read_labels(entry: ModelEntry, config: mc.ModelConfig) -> dict[str, tuple[str, ...]]:
    """Read the label files: output name to its labels, the label of class i in line i.

    Raises:
        InferError: UNSUPPORTED when a file is outside the model's directory; INTERNAL when it cannot be read.
    """
    labelled = [output for output in config.output if output.label_filename]
    return {output.name: _lines(_label_path(entry, output)) for output in labelled}


def _label_path(entry: ModelEntry, output: mc.ModelOutput) -> Path:
    path = entry.directory / str(output.label_filename)
    if not _stays_inside(entry.directory, output.label_filename) or not is_inside(path, entry.directory):
        raise InferError(
            ErrorCode.UNSUPPORTED,
            f"label file path '{path}' for output '{output.name}' in model '{entry.name}' is outside model "
            "directory",
        )
    return path


def _lines(path: Path) -> tuple[str, ...]:
    # Written by an editor of Windows: Triton would answer labels with a carriage return at the end.
    text = read_text(path, MAX_LABEL_BYTES).removeprefix("\ufeff").replace("\r\n", "\n")
    return tuple(text.removesuffix("\n").split("\n")) if text else ()


def read_text(path: Path, limit: int) -> str:
    """Read a regular file, `limit` bytes at most."""
    try:
        # Non-blocking: a pipe in place of the file must not block the manager.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            regular = S_ISREG(os.fstat(descriptor).st_mode)
            data = file.read(limit + 1) if regular else b""
    except OSError as error:
        raise _unreadable(path, error.strerror) from None
    if not regular or len(data) > limit:
        raise _unreadable(path, f"larger than {limit} bytes" if regular else "not a regular file")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _unreadable(path, f"line {line} is not UTF-8; save the file as UTF-8") from None


def _unreadable(path: Path, why: str | None) -> InferError:
    return internal(f"failed to open text file for read {path}: {why}")
