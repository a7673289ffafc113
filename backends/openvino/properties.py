"""Properties of a compiled model, from the `parameters` of a configuration.

Names, values and texts are those of Triton's OpenVINO backend (src/openvino.cc).
"""

from collections.abc import Mapping
from typing import Any, Final

from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import invalid_arg
from app.core.system.cpus import available_cpus
from backends.base import Model
from backends.cpus import cpu_instances, threads_per_instance

Properties = dict[str, Any]

_CPU: Final = "CPU"
_CPU_PROPERTIES: Final[Properties] = {
    # Each process would pin its threads to the same first cores.
    "ENABLE_CPU_PINNING": False,
    # The default is bfloat16 where the processor has it: other answers on other machines.
    "INFERENCE_PRECISION_HINT": "f32",
}
_HINTS: Final = ("latency", "throughput", "cumulative_throughput")


def target_device(model: Model) -> str:
    """Return the device that executes a model, such as "CPU" or "AUTO:GPU,CPU"."""
    return model.parameter("TARGET_DEVICE").upper() or _CPU


def flag(model: Model, key: str) -> bool:
    """Return whether a parameter is YES; anything else is no, as in Triton."""
    return model.parameter(key).lower() == "yes"


def compile_properties(model: Model) -> Properties:
    """Return the properties with which a model is compiled.

    Raises:
        InferError: INVALID_ARG for a parameter's value.
    """
    chosen = _chosen(model)
    if target_device(model) != _CPU:
        return chosen
    threads = chosen.pop("INFERENCE_NUM_THREADS", None)
    if "NUM_STREAMS" in chosen or "PERFORMANCE_HINT" in chosen:
        of_all_streams = available_cpus() if threads is None else threads
        return {"INFERENCE_NUM_THREADS": of_all_streams} | _CPU_PROPERTIES | chosen
    return cpu_properties(model.config, threads) | chosen


def cpu_properties(config: mc.ModelConfig, threads: int | None = None) -> Properties:
    """Return the properties of a model that all of its CPU instances share.

    An execution has a stream for itself: with fewer streams than instances they would wait for each other.

    Args:
        threads: the threads of one execution; by default an equal share of the CPUs.
    """
    streams = min(cpu_instances(config), available_cpus())
    each = threads_per_instance(config) if threads is None else threads
    return {"INFERENCE_NUM_THREADS": each * streams, "NUM_STREAMS": streams} | _CPU_PROPERTIES


def _chosen(model: Model) -> Properties:
    values = {key: model.parameter(key).lower() for key in model.config.parameters}
    found: Properties = {}
    for key in ("INFERENCE_NUM_THREADS", "COMPILATION_NUM_THREADS"):
        if value := values.get(key):
            if not _is_number(value):
                raise invalid_arg(f"expected the parameter '{key}' to be a non-negative number, got {value}")
            found[key] = int(value)
    if value := values.get("HINT_BF16"):
        if value != "yes":
            raise invalid_arg(f"expected the parameter 'HINT_BF16' to be YES, got {value}")
        found["INFERENCE_PRECISION_HINT"] = "bf16"
    return found | _streams(values) | _hint(values)


def _streams(values: Mapping[str, str]) -> Properties:
    value = values.get("NUM_STREAMS")
    if not value:
        return {}
    if value not in ("auto", "numa") and not _is_number(value):
        raise invalid_arg(
            f"expected the parameter 'NUM_STREAMS' to be either AUTO/NUMA/<int_value>, got {value}"
        )
    return {"NUM_STREAMS": value.upper()}


def _hint(values: Mapping[str, str]) -> Properties:
    value = values.get("PERFORMANCE_HINT")
    if not value:
        return {}
    if value not in _HINTS:
        raise invalid_arg(
            "expected the parameter 'PERFORMANCE_HINT' to be LATENCY/THROUGHPUT/CUMULATIVE_THROUGHPUT, got"
            f" {value}"
        )
    return {"PERFORMANCE_HINT": value.upper()}


def _is_number(value: str) -> bool:
    return value.isascii() and value.isdigit()
