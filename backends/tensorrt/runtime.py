"""TensorRT in this process: its log, its plugins, and engines out of files."""

import ctypes
import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import tensorrt as trt
import torch

from app.core.errors import internal, invalid_arg
from backends.parameters import parse_boolean

logger = logging.getLogger(__name__)

NO_CORE: Final = -1
"""Stands for the GPU itself where the number of a DLA core could be."""


class _Log(trt.ILogger):  # type: ignore[misc]
    """Writes TensorRT's messages to the server's log and keeps the last error, found nowhere else."""

    _LEVELS: Final = {"VERBOSE": logging.DEBUG, "INFO": logging.DEBUG, "WARNING": logging.WARNING}

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self.last_error = ""

    def log(self, severity: Any, message: str) -> None:
        """Log a message; called by TensorRT on any thread."""
        level = self._LEVELS.get(severity.name, logging.ERROR)
        if level == logging.ERROR:
            self.last_error = message
        logger.log(level, "%s", message)


# One for the process, because it has to outlive the engines.
LOG: Final = _Log()


def deserialise(
    path: Path, device: torch.device, settings: Mapping[str, str], core: int = NO_CORE
) -> tuple[Any, Any]:
    """Return the runtime and the engine of a file.

    Args:
        path: a plan.
        device: the GPU.
        settings: `--backend-config=tensorrt,...`: `plugins` are shared libraries, separated by ";", that
            register layers; `version-compatible=true` allows plans that bring host code of another version
            of TensorRT, which is executed.
        core: a DLA core.

    Raises:
        InferError: INTERNAL with TensorRT's message, INVALID_ARG for a core that is not there, or a setting.
    """
    load_plugins(settings)
    with torch.cuda.device(device):
        runtime = trt.Runtime(LOG)
        if core != NO_CORE:
            if core >= runtime.num_DLA_cores:
                raise invalid_arg(
                    f"unable to create TensorRT runtime with DLA Core ID: {core}, available number of DLA"
                    f" cores: {runtime.num_DLA_cores}"
                )
            runtime.DLA_core = core
        if parse_boolean("version-compatible", settings.get("version-compatible") or "false"):
            runtime.engine_host_code_allowed = True
        engine = runtime.deserialize_cuda_engine(path.read_bytes())
    if engine is None:
        raise internal(f"unable to create TensorRT engine: {LOG.last_error}")
    return runtime, engine


def load_plugins(settings: Mapping[str, str]) -> None:
    """Register TensorRT's own plugins and those of the setting `plugins`.

    Raises:
        InferError: INTERNAL for a library that cannot be loaded.
    """
    trt.init_libnvinfer_plugins(None, "")
    for library in filter(None, settings.get("plugins", "").split(";")):
        _load(library)


@cache
def _load(library: str) -> None:
    try:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise internal(f"unable to load TensorRT plugin library '{library}': {error}") from error
    logger.info("loaded TensorRT plugins of '%s'", library)
