"""Parameters, backend settings and accelerators of a TensorFlow model, as plain values.

Names, defaults and texts are those of Triton's tensorflow backend (src/tensorflow.cc).
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import invalid_arg
from backends.base import Instance, Model
from backends.cpus import threads_per_instance
from backends.parameters import boolean, integer, parse_boolean

logger = logging.getLogger(__name__)

GRAPHDEF: Final = "tensorflow_graphdef"
SAVED_MODEL: Final = "tensorflow_savedmodel"
_FILE_NAMES: Final = {GRAPHDEF: "model.graphdef", SAVED_MODEL: "model.savedmodel"}
_INTEGERS: Final = ("minimum_segment_size", "max_workspace_size_bytes", "max_cached_engines")


class Accelerators(NamedTuple):
    """What `execution_accelerators` of a configuration ask for.

    Attributes:
        tensorrt: parameters of TF-TRT; None without it.
        mixed_precision: whether the graph is rewritten for mixed precision.
    """

    tensorrt: Mapping[str, int | str] | None = None
    mixed_precision: bool = False


class SessionSettings(NamedTuple):
    """How a session of a model is made.

    Attributes:
        intra_threads: threads of the pool that executes parts of one operation; 0 leaves it to TensorFlow.
        inter_threads: threads of the pool that executes operations; below 0, the instance's thread does.
        own_threads: whether the session has a pool of its own for operations, rather than the process's.
        jit_level: global level of XLA: None (default), -1 (off), 1 or 2.
        gpu: the CUDA ordinal that operations are placed on; None for the CPU, -1 as the graph says.
        soft_placement: whether operations without an implementation for the GPU are executed on the CPU.
        gpu_memory_fraction: of a GPU's memory to reserve; 0 grows as needed.
        accelerators: rewritings of the graph.
    """

    intra_threads: int
    inter_threads: int
    own_threads: bool
    jit_level: int | None
    gpu: int | None
    soft_placement: bool
    gpu_memory_fraction: float
    accelerators: Accelerators


def platform(config: mc.ModelConfig) -> str:
    """Return the platform of a model: a GraphDef or a SavedModel.

    Raises:
        InferError: INVALID_ARG for any other.
    """
    if config.platform not in _FILE_NAMES:
        raise invalid_arg(f"platform {config.platform} not supported for TensorFlow model '{config.name}'")
    return str(config.platform)


def model_path(model: Model) -> Path:
    """Return the path of the model's file or directory."""
    return model.artifact(_FILE_NAMES[platform(model.config)])


def instances_per_session(model: Model) -> int | None:
    """Return how many instances may share a session; None for all, when MAX_SESSION_SHARE_COUNT is not set.

    Triton's default is 1, with the weights once for each instance. A session takes concurrent runs.

    Raises:
        InferError: INVALID_ARG for a value that is no positive number.
    """
    key = "MAX_SESSION_SHARE_COUNT"
    if not model.parameter(key):
        return None
    count = integer(model, key)
    if count <= 0:
        raise invalid_arg(f"parameter '{key}' must be positive number for TensorFlow model '{model.name}'")
    return count


def session_settings(instance: Instance) -> SessionSettings:
    """Read what a session for this instance is made with.

    By default an operation has the instance's share of the CPUs, and operations are executed on the thread of
    the instance: a small model takes half as long as with the smallest pool. Of a process's sessions the
    first decides the pools, unless they have their own.

    Raises:
        InferError: INVALID_ARG for a parameter's or accelerator's value.
    """
    model = instance.model
    return SessionSettings(
        intra_threads=_intra_threads(model),
        inter_threads=integer(model, "TF_NUM_INTER_THREADS", -1),
        own_threads=boolean(model, "TF_USE_PER_SESSION_THREADS"),
        jit_level=_jit_level(model.config),
        gpu={"CPU": None, "MODEL": -1}.get(instance.kind, instance.device_id),
        soft_placement=parse_boolean(
            "allow-soft-placement", model.backend_config.get("allow-soft-placement", "true")
        ),
        gpu_memory_fraction=gpu_memory_fraction(model.backend_config),
        accelerators=accelerators(instance),
    )


def _intra_threads(model: Model) -> int:
    key = "TF_NUM_INTRA_THREADS"
    threads = integer(model, key, threads_per_instance(model.config))
    if threads < 0:
        raise invalid_arg(
            f"parameter '{key}' must be non-negative number for TensorFlow model '{model.name}'"
        )
    return threads


def _jit_level(config: mc.ModelConfig) -> int | None:
    if not config.optimization.HasField("graph"):
        return None
    level = config.optimization.graph.level
    return min(level, 2) if level > 0 else -1 if level == -1 else None


def gpu_memory_fraction(settings: Mapping[str, str]) -> float:
    """Return `--backend-config=tensorflow,gpu-memory-fraction`; 0 lets TensorFlow's use of memory grow.

    Raises:
        InferError: INVALID_ARG for anything but a number from 0 to 1.
    """
    value = settings.get("gpu-memory-fraction", "0")
    try:
        fraction = float(value)
    except ValueError:
        fraction = -1.0
    if not 0.0 <= fraction <= 1.0:
        raise invalid_arg(
            f"--backend-config=tensorflow,gpu-memory-fraction must be a number from 0 to 1, got '{value}'"
        )
    return fraction


def default_batch(settings: Mapping[str, str]) -> int:
    """Return `--backend-config=tensorflow,default-max-batch-size`; by default 4, as Triton's core has it.

    Raises:
        InferError: INVALID_ARG when it is no integer.
    """
    value = settings.get("default-max-batch-size", "4")
    try:
        return max(0, int(value))
    except ValueError:
        raise invalid_arg(
            f"--backend-config=tensorflow,default-max-batch-size must be an integer, got '{value}'"
        ) from None


def accelerators(instance: Instance) -> Accelerators:
    """Read the accelerators that apply to an instance.

    Raises:
        InferError: INVALID_ARG for an accelerator or parameter that the backend does not have.
    """
    declared = instance.model.config.optimization.execution_accelerators
    if declared.cpu_execution_accelerator:
        raise invalid_arg("CPU Execution Accelerator is not supported in TensorFlow backend")
    if instance.kind == "CPU":
        if declared.gpu_execution_accelerator:
            logger.warning("GPU Execution Accelerator will be ignored for model instance on CPU")
        return Accelerators()
    tensorrt, mixed_precision = None, False
    for accelerator in declared.gpu_execution_accelerator:
        if accelerator.name == "tensorrt":
            tensorrt = _tensorrt(accelerator.parameters)
        elif accelerator.name == "auto_mixed_precision":
            mixed_precision = True
        elif accelerator.name != "gpu_io":  # inputs and outputs in GPU memory, which Python has no use for
            raise invalid_arg(f"unknown Execution Accelerator '{accelerator.name}' is requested")
    if tensorrt is not None and mixed_precision:
        raise invalid_arg("Auto mixed precision can not be set with TFTRT optimization")
    return Accelerators(tensorrt, mixed_precision)


def _tensorrt(parameters: Mapping[str, str]) -> dict[str, Any]:
    options: dict[str, int | str] = {
        "precision_mode": "FP32",
        "minimum_segment_size": 3,
        "max_workspace_size_bytes": 1 << 30,
        "max_cached_engines": 100,
    }
    for key, value in parameters.items():
        if key not in options:
            raise invalid_arg(f"unknown parameter '{key}' is provided for TensorRT Execution Accelerator")
        options[key] = value
    if options["precision_mode"] not in ("FP32", "FP16"):
        raise invalid_arg(f"unsupported precision mode '{options['precision_mode']}' is requested")
    for key in _INTEGERS:
        try:
            options[key] = int(options[key])
        except ValueError:
            raise invalid_arg(f"failed to convert '{options[key]}' to long long integral number") from None
    return options
