"""What one version of a model needs that others do not: `optimised.json` in its directory.

Triton has one configuration for all versions. `nereid optimise` makes versions that another backend answers,
or that a processor without certain instructions would answer wrongly; it writes this file, and nobody has to.
Whoever may write it may write the version's model file too, and gets no further by it: backends that execute
code of files, and parameters that name libraries, are refused.
"""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

import msgspec
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import copied
from app.core.config.text import MAX_CONFIG_BYTES
from app.core.errors import invalid_arg, unavailable
from app.core.system.cpus import cpu_flags
from backends.registry.descriptions import described

VERSION_FILE: Final = "optimised.json"
_BACKENDS: Final = ("onnxruntime", "openvino", "tensorrt")
"""Beside the model's own: they read models, and execute no code of theirs."""
_PARAMETERS: Final = ("HINT_BF16", "INFERENCE_NUM_THREADS", "intra_op_thread_count", "precision_mode")
_PLAIN: Final = re.compile(r"[\w.-]+")


class VersionForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The differences of a version from the model's configuration; "" for none.

    Attributes:
        backend: that answers the version.
        default_model_filename: its file.
        parameters: beside those of the configuration.
    """

    backend: str = ""
    default_model_filename: str = ""
    parameters: dict[str, str] = {}

    def of(self, config: mc.ModelConfig) -> mc.ModelConfig:
        """Return a configuration with this form."""
        made = copied(config)
        if self.backend and self.backend != config.backend:
            threads = described(config.backend).thread_parameter
            if threads in made.parameters:
                del made.parameters[threads]
            made.backend, made.platform = self.backend, ""
            made.ClearField("optimization")  # accelerators of the other backend
        if self.default_model_filename:
            made.default_model_filename = self.default_model_filename
        for name, value in self.parameters.items():
            made.parameters[name].string_value = value
        return made


class VersionFile(msgspec.Struct, frozen=True):
    """The file, as far as a server reads it.

    Attributes:
        config: the form of the version.
        cpu_flags: that a processor has to have, as Linux calls them.
    """

    config: VersionForm = VersionForm()
    cpu_flags: tuple[str, ...] = ()


def read_version_file(directory: Path, own_backend: str) -> VersionFile | None:
    """Read the file of a version's directory; None without one.

    Args:
        directory: of the version.
        own_backend: of the model's configuration.

    Raises:
        InferError: INVALID_ARG with the file and the reason.
    """
    path = directory / VERSION_FILE
    try:
        if not path.is_file():
            return None
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ValueError(f"it has more than {MAX_CONFIG_BYTES} bytes")
        found = msgspec.json.decode(path.read_bytes(), type=VersionFile)
        _check(found.config, own_backend)
    except (OSError, ValueError) as error:  # of msgspec too
        raise invalid_arg(f"'{path}': {error}") from None
    return found


def _check(form: VersionForm, own_backend: str) -> None:
    if form.backend not in ("", own_backend, *_BACKENDS):
        raise ValueError(f"config: backend: '{form.backend}' is none of {', '.join(_BACKENDS)}")
    name = form.default_model_filename
    if name and (not _PLAIN.fullmatch(name) or name in (".", "..")):
        raise ValueError(f"config: default_model_filename: {name!r} is no name of a file beside it")
    if unknown := sorted({*form.parameters} - {*_PARAMETERS}):
        raise ValueError(f"config: parameters: '{unknown[0]}' is none of {', '.join(_PARAMETERS)}")


def refuse_processor(
    directory: Path, model: str, version: int, own_backend: str, flags: Collection[str] | None = None
) -> None:
    """Refuse a version whose answers would be others on this machine.

    Args:
        directory: of the version.
        model, version: for the text.
        own_backend: of the configuration.
        flags: of the processor; None for those of this one.

    Raises:
        InferError: UNAVAILABLE with the flags that are missing; as `read_version_file`.
    """
    found = read_version_file(directory, own_backend)
    if found is None or not found.cpu_flags:
        return
    here = cpu_flags() if flags is None else flags
    if missing := [flag for flag in found.cpu_flags if flag not in here]:
        raise unavailable(
            f"version {version} of model '{model}' was optimised for processors with {', '.join(missing)}, "
            f"which this one has not ({directory / VERSION_FILE}): its answers would be others, or slow"
        )
