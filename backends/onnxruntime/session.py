"""Session options and execution providers from a model configuration.

Parameters, their values and the error texts are those of Triton's onnxruntime backend.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import onnxruntime as ort

from app.core.errors import invalid_arg, unsupported
from app.core.installed.installation import install_command
from backends.base import Instance, Model
from backends.cpus import threads_per_instance
from backends.onnxruntime.accelerator import OPENVINO, PROVIDER
from backends.parameters import boolean, integer, parse_boolean, positive

Provider = tuple[str, dict[str, str]]
Run = Callable[..., Any]
"""Takes names of outputs, inputs by name, and run options; returns the outputs in that order."""

CPU: Final[Provider] = ("CPUExecutionProvider", {})

# Errors reach the client or the server's log as exceptions; by default ONNX Runtime prints them as well.
FATAL: Final = 4

_GRAPH_LEVELS: Final = {
    -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}

_PRECISIONS: Final = {
    "FP16": {"trt_fp16_enable": "1"},
    "BF16": {"trt_bf16_enable": "1"},
    "INT8": {"trt_int8_enable": "1"},
    "FP32": {},
}

# TensorRT provider options that Triton renames; the others start with trt_ and keep their names.
_TENSORRT_NAMES: Final = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}

_CUDA_ENUMS: Final = {
    "cudnn_conv_algo_search": ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
    "arena_extend_strategy": ("kNextPowerOfTwo", "kSameAsRequested"),
}


def session_options(model: Model) -> ort.SessionOptions:
    """Return the session options of a model.

    Threads within an operator default to an equal share of the CPUs for each instance; with one thread
    the operators run on the calling thread. Idle threads sleep rather than spin, because other instances and
    the ingress use the same cores.

    Raises:
        InferError: INVALID_ARG for a parameter's value.
    """
    options = ort.SessionOptions()
    options.log_severity_level = FATAL
    options.graph_optimization_level = graph_level(model)
    mode = integer(model, "execution_mode")
    if mode not in (0, 1):
        raise invalid_arg(
            "Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got"
            f" {mode} ."
        )
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL if mode else ort.ExecutionMode.ORT_SEQUENTIAL
    _set_threads(options, model)
    for key in model.config.parameters:
        if key.startswith("session."):
            options.add_session_config_entry(key, model.parameter(key))
    if "enable_mem_arena" in model.config.parameters:
        options.enable_cpu_mem_arena = boolean(model, "enable_mem_arena")
    if "enable_mem_pattern" in model.config.parameters:
        options.enable_mem_pattern = boolean(model, "enable_mem_pattern")
    for library in model.config.model_operations.op_library_filename:
        options.register_custom_ops_library(library)
    return options


def graph_level(model: Model) -> ort.GraphOptimizationLevel:
    """Return the level at which the model's graph is optimised."""
    return _GRAPH_LEVELS.get(model.config.optimization.graph.level, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)


def _set_threads(options: ort.SessionOptions, model: Model) -> None:
    if uses_global_threads(model.backend_config):
        options.use_per_session_threads = False
    else:
        options.intra_op_num_threads = positive(
            model, "intra_op_thread_count", threads_per_instance(model.config)
        )
        options.inter_op_num_threads = positive(model, "inter_op_thread_count", 0)
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")


def run_of(session: ort.InferenceSession) -> Run:
    """Return a session's `run`, without checks of its inputs' names that would cost a microsecond.

    What is left out is ONNX Runtime's in Python, and not public: where it is not there, or where a provider
    other than the CPU's may fail and be replaced by another, it is the public `run`.
    """
    direct: Run | None = getattr(getattr(session, "_sess", None), "run", None)
    if direct is None or session.get_providers() != [CPU[0]]:
        direct = session.run
    return direct


def run_options(model: Model) -> ort.RunOptions | None:
    """Return run options, or None when the configuration sets none."""
    key = "memory.enable_memory_arena_shrinkage"
    if key not in model.config.parameters:
        return None
    options = ort.RunOptions()
    options.add_run_config_entry(key, model.parameter(key))
    return options


def providers(instance: Instance, stream: int = 0) -> list[Provider]:
    """Return the execution providers of an instance, the preferred one first.

    Args:
        instance: the instance.
        stream: the CUDA stream to use; 0 leaves the choice to ONNX Runtime.

    Raises:
        InferError: UNSUPPORTED for a GPU instance without the CUDA provider, INVALID_ARG for an unknown
            accelerator or parameter.
    """
    accelerators = instance.model.config.optimization.execution_accelerators
    chosen: list[Provider] = []
    if instance.kind == "GPU":
        chosen = _gpu_providers(instance, accelerators.gpu_execution_accelerator, stream)
    for accelerator in accelerators.cpu_execution_accelerator:
        if accelerator.name != OPENVINO:
            raise invalid_arg(f"unknown Execution Accelerator '{accelerator.name}' is requested")
        if _present(PROVIDER):
            chosen.append((PROVIDER, {"device_type": "CPU"}))
    return [*chosen, CPU]


def _gpu_providers(instance: Instance, accelerators: Any, stream: int) -> list[Provider]:
    if not _present("CUDAExecutionProvider"):
        raise unsupported(
            f"instance '{instance.name}' has kind KIND_GPU but this ONNX Runtime has no CUDA execution"
            f" provider; install the extra: {install_command('gpu')}"
        )
    device = {"device_id": str(instance.device_id)}
    cuda = _cuda_options(instance.model)
    if stream:
        device["user_compute_stream"] = str(stream)
        if instance.model.config.optimization.cuda.graphs:
            cuda["enable_cuda_graph"] = "1"
    chosen: list[Provider] = []
    for accelerator in accelerators:
        if accelerator.name == "cuda":
            cuda.update(accelerator.parameters)
        elif accelerator.name == "tensorrt" and _present("TensorrtExecutionProvider"):
            chosen.append(
                ("TensorrtExecutionProvider", {**_tensorrt_options(accelerator.parameters), **device})
            )
        else:
            raise invalid_arg(f"unknown Execution Accelerator '{accelerator.name}' is requested")
    return [*chosen, ("CUDAExecutionProvider", {**cuda, **device})]


def _cuda_options(model: Model) -> dict[str, str]:
    """Return the CUDA options that Triton also reads from the model's parameters."""
    options = {
        key: model.parameter(key)
        for key in ("gpu_mem_limit", "do_copy_in_default_stream")
        if key in model.config.parameters
    }
    for key, values in _CUDA_ENUMS.items():
        if key in model.config.parameters:
            index = integer(model, key)
            if not 0 <= index < len(values):
                raise invalid_arg(f"unsupported {key} value '{index}' is requested")
            options[key] = values[index]
    return options


def _tensorrt_options(parameters: Mapping[str, str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for key, value in parameters.items():
        if key == "precision_mode":
            if value not in _PRECISIONS:
                raise invalid_arg(f"unsupported precision mode '{value}' is requested")
            options.update(_PRECISIONS[value])
        elif key in _TENSORRT_NAMES or key.startswith("trt_"):
            options[_TENSORRT_NAMES.get(key, key)] = value
        else:
            raise invalid_arg(f"unknown parameter '{key}' is provided for TensorRT Execution Accelerator")
    return options


def _present(provider: str) -> bool:
    return provider in ort.get_available_providers()


def uses_global_threads(backend_config: Mapping[str, str]) -> bool:
    """Whether all sessions of the process share one thread pool."""
    key = "enable-global-threadpool"
    return parse_boolean(key, backend_config.get(key, "0"))
