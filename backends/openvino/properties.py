"""Properties of a compiled model, from the `parameters` of a configuration.

Names, values and texts are those of Triton's OpenVINO backend (src/openvino.cc).
"""

from collections.abc import Mapping
from typing import Any, Final

from app.core.cpus import available_cpus
from app.core.errors import invalid_arg
from backends.base import Model
from backends.cpus import threads_per_instance

Properties = dict[str, Any]

_CPU: Final = "CPU"
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
    if "NUM_STREAMS" in chosen or "PERFORMANCE_HINT" in chosen:
        defaults = cpu_properties(available_cpus())  # of all streams together
        del defaults["NUM_STREAMS"]
    else:
        defaults = cpu_properties(threads_per_instance(model.config))
    return defaults | chosen


def cpu_properties(threads: int) -> Properties:
    """Return the properties of a model of which each instance computes with so many threads.

    With one stream an infer request runs on the thread that calls it, so instances run beside each other.
    """
    return {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        # Each process would pin its threads to the same first cores.
        "ENABLE_CPU_PINNING": False,
        # The default is bfloat16 where the processor has it: other answers on other machines.
        "INFERENCE_PRECISION_HINT": "f32",
    }


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
