"""A model in its present form and in that of a candidate, as a repository of two models for a trial."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final, NamedTuple

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import copied
from app.core.config.normalise import ENSEMBLE
from app.core.errors import InferError
from backends.registry.descriptions import described
from deployments.model_store import layout, model_files
from deployments.model_store.version_file import VERSION_FILE, VersionForm, read_version_file
from nereid.optimise.trials.candidates import Candidate
from nereid.optimise.trials.rows import OptimiseError

PRESENT: Final = "present"
CANDIDATE: Final = "candidate"


class Source(NamedTuple):
    """A model as it is.

    Attributes:
        name: of the model.
        directory: that it has.
        version: the version that is improved.
        versions: all that it has.
        config: its configuration, its backend and file known.
    """

    name: str
    directory: Path
    version: int
    versions: tuple[int, ...]
    config: mc.ModelConfig

    @property
    def files(self) -> Path:
        """The directory of the version."""
        return self.directory / str(self.version)

    @property
    def file(self) -> str:
        """The name of the model's file, below `files`."""
        if self.config.default_model_filename:
            return str(self.config.default_model_filename)
        formats = described(self.config.backend).formats
        return formats[0].file_name if formats else ""


def read_source(repository: Path, name: str, version: int = 0) -> Source:
    """Read a model of a repository; of its versions the newest, by default.

    Raises:
        OptimiseError: there is none, or none that can be optimised.
    """
    try:
        found = layout.find({repository: ""}, name)
        if not found or found[0].reason:
            raise OptimiseError(found[0].reason if found else f"there is no model '{name}' in '{repository}'")
        config = model_files.read_config(found[0])
    except InferError as error:
        raise OptimiseError(error.message) from None
    versions = found[0].versions
    chosen = version or max(versions, default=0)
    if chosen not in versions:
        raise OptimiseError(f"'{name}' has no version {chosen or ''}".rstrip())
    try:
        found_file = read_version_file(found[0].directory / str(chosen), config.backend)
    except InferError as error:
        raise OptimiseError(error.message) from None
    if found_file is not None:  # an optimised version may be optimised further
        config = found_file.config.of(config)
    if why := _unsuited(config):
        raise OptimiseError(f"'{name}' cannot be optimised: {why}")
    source = Source(name, found[0].directory, chosen, versions, config)
    if not source.file or not (source.files / source.file).is_file():
        raise OptimiseError(f"'{name}' cannot be optimised: it has no file that its backend answers by")
    return source


def _unsuited(config: mc.ModelConfig) -> str:
    if config.platform == ENSEMBLE or config.WhichOneof("scheduling_choice") == "ensemble_scheduling":
        return "it is an ensemble: optimise the models that it calls"
    if config.HasField("sequence_batching"):
        return "its requests are steps of sequences"
    if config.model_transaction_policy.decoupled:
        return "it is decoupled"
    return (
        "Python models have instances and batches only: nereid analyze" if config.backend == "python" else ""
    )


def on_gpu(config: mc.ModelConfig) -> bool:
    """Return whether instances of a configuration name a GPU."""
    return any(group.kind == mc.ModelInstanceGroup.KIND_GPU for group in config.instance_group)


def lay_out(directory: Path, source: Source, candidate: Candidate, threads: int) -> Path:
    """Write a repository with the present form and a candidate's, each with so many threads and one instance.

    The candidate's own file is not there yet: see `file_of`. Nothing of the source is copied or changed.
    """
    models = directory / "models"
    shutil.rmtree(models, ignore_errors=True)
    _model(models / PRESENT, source, trial_config(source.config, PRESENT, threads))
    _model(models / CANDIDATE, source, trial_config(formed(source, candidate), CANDIDATE, threads))
    if candidate.file:
        (models / CANDIDATE / "1" / candidate.file).unlink(missing_ok=True)  # a link to the source's
    return models


def file_of(models: Path, candidate: Candidate) -> Path:
    """Return where a candidate's own file is to be written."""
    return models / CANDIDATE / "1" / candidate.file


def _model(directory: Path, source: Source, config: mc.ModelConfig) -> None:
    files = directory / "1"
    files.mkdir(parents=True)
    (directory / layout.CONFIG_FILE).write_text(text_format.MessageToString(config))
    for name in os.listdir(source.files):
        if name != VERSION_FILE:
            (files / name).symlink_to((source.files / name).absolute())
    for name in os.listdir(source.directory):  # labels, requirements, weights that versions share
        path = source.directory / name
        if path.is_file() and name not in (layout.CONFIG_FILE, *layout.POLICY_FILES):
            (directory / name).symlink_to(path.absolute())


def formed(source: Source, candidate: Candidate) -> mc.ModelConfig:
    """Return the configuration with what a candidate changes of it."""
    return form_of(source, candidate).of(source.config)


def form_of(source: Source, candidate: Candidate) -> VersionForm:
    """Return what a candidate changes of a configuration, as a server reads it."""
    return VersionForm(candidate.backend, candidate.file or source.file, dict(candidate.parameters))


def trial_config(config: mc.ModelConfig, name: str, threads: int) -> mc.ModelConfig:
    """Return a configuration for one request at a time, with so many threads."""
    made = copied(config)
    made.name = name
    for field in ("version_policy", "dynamic_batching", "instance_group", "model_warmup", "response_cache"):
        made.ClearField(field)
    for output in made.output:
        output.label_filename = ""  # of classes nobody asks for here
    made.instance_group.add(count=1, kind=_kind(config))
    if parameter := described(config.backend).thread_parameter:
        made.parameters[parameter].string_value = str(threads)
    return made


def _kind(config: mc.ModelConfig) -> mc.ModelInstanceGroup.Kind.ValueType:
    if config.backend in ("tensorrt", "openvino"):
        on_gpu = config.backend == "tensorrt"
        return mc.ModelInstanceGroup.KIND_GPU if on_gpu else mc.ModelInstanceGroup.KIND_CPU
    return config.instance_group[0].kind if config.instance_group else mc.ModelInstanceGroup.KIND_CPU
