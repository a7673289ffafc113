"""What a configuration asks of Paddle, with the names, defaults and errors of Triton's paddle_backend."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import triton_python_backend_utils as pb_utils

Config = Mapping[str, Any]

PRECISIONS: Final = ("fluid", "trt_fp32", "trt_fp16", "trt_int8")
_SHAPES: Final = ("min_shape", "max_shape", "opt_shape")
_DATA_TYPES: Final = frozenset(
    f"TYPE_{name}" for name in ("BOOL", "UINT8", "INT8", "INT32", "INT64", "FP16", "FP32", "FP64")
)
"""Triton's backend has neither BOOL nor FP64."""


@dataclass
class Cpu:
    """Accelerators of an instance on the CPU.

    Attributes:
        ort: have ONNX Runtime execute the model; the other accelerator is then left alone.
        onednn: parameters of `mkldnn` may be given without it, to no effect.
        threads: 0 for the instance's share of the CPUs.
        capacity: how many shapes of inputs oneDNN keeps primitives for.
        int8: let oneDNN compute what a quantised model marks in 8 bits.
    """

    ort: bool = False
    onednn: bool = False
    threads: int = 0
    capacity: int = 10
    int8: bool = False


@dataclass
class TensorRt:
    """Paddle's use of TensorRT.

    Attributes:
        max_batch_size: 0 for the model's; Triton's default is 1.
        is_dynamic: inputs have the sizes that `shapes` allows.
        disenable_trt_tune: is read, and changes nothing: nothing is tuned.
        shapes: `min_shape`, `max_shape` and `opt_shape`, each a shape for each input.
    """

    precision: str = "trt_fp32"
    min_graph_size: int = 5
    workspace_size: int = 1 << 30
    max_batch_size: int = 0
    enable_tensorrt_oss: bool = False
    is_dynamic: bool = False
    disenable_trt_tune: bool = False
    shapes: dict[str, dict[str, list[int]]] = field(default_factory=dict)


def read_cpu(config: Config) -> Cpu:
    """Read `cpu_execution_accelerator`.

    Raises:
        TritonModelException: an unknown name, or a value of another type.
    """
    found = Cpu()
    for name, parameters in _accelerators(config, "cpu"):
        if name == "mkldnn":
            found.onednn = True
        elif name == "ort":
            found.ort = True
        elif name:
            raise pb_utils.TritonModelException(
                f"unknown cpu_execution_accelerator name '{name}' is provided. Available choices are"
                " [mkldnn, ort]"
            )
        found.threads = _integer(parameters.get("cpu_threads", str(found.threads)))
        found.capacity = _integer(parameters.get("capacity", str(found.capacity)))
        found.int8 = _boolean(parameters.get("use_int8", str(found.int8)))
    return found


def read_tensorrt(config: Config) -> TensorRt | None:
    """Read `gpu_execution_accelerator`; None without `tensorrt`.

    Raises:
        TritonModelException: an unknown name, parameter or precision, or a value of another type.
    """
    found, used = TensorRt(), False
    for name, parameters in _accelerators(config, "gpu"):
        if name == "tensorrt":
            used = True
            for key, value in parameters.items():
                _set_tensorrt(found, key, value)
        elif name in _SHAPES:
            found.shapes[name] = {key: [*map(int, value.split())] for key, value in parameters.items()}
        else:
            raise pb_utils.TritonModelException(
                f"unknown name '{name}' is provided for GPU execution accelerator Available choices are"
                " [config, min_shape, max_shape, opt_shape]"
            )
    return found if used else None


def check_instance(config: Config, name: str, kind: str) -> None:
    """Check what Paddle has to have, whatever the model.

    Raises:
        TritonModelException: a data type or a kind that it has not.
    """
    for tensor in (*config["input"], *config["output"]):
        if tensor["data_type"] not in _DATA_TYPES:
            raise pb_utils.TritonModelException(
                f"unsupported datatype '{tensor['data_type']}' for tensor '{tensor['name']}' for model"
                f" '{config['name']}'"
            )
    if kind not in ("CPU", "GPU"):
        raise pb_utils.TritonModelException(
            f"unexpected instance kind for {name}, paddle_backend only supports CPU/GPU."
        )


def _set_tensorrt(found: TensorRt, key: str, value: str) -> None:
    if key == "precision":
        found.precision = value.lower()
        if found.precision not in PRECISIONS[1:]:
            raise pb_utils.TritonModelException(
                f"unknown precision type '{found.precision}' is provided. Available choices are"
                f" [{', '.join(PRECISIONS)}]"
            )
    elif key == "shapes" or not hasattr(found, key):
        raise pb_utils.TritonModelException(
            f"unknown parameter '{key}' is provided for GPU execution accelerator config. Available"
            " choices are [precision, min_graph_size, workspace_size, max_batch_size, enable_tensorrt_oss,"
            " is_dynamic]"
        )
    else:
        read = _boolean if isinstance(getattr(found, key), bool) else _integer
        setattr(found, key, read(value))


def _accelerators(config: Config, kind: str) -> list[tuple[str, dict[str, str]]]:
    given = config.get("optimization", {}).get("execution_accelerators", {})
    return [
        (each.get("name", ""), each.get("parameters", {}))
        for each in given.get(f"{kind}_execution_accelerator", ())
    ]


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise pb_utils.TritonModelException(f"failed to convert '{text}' to integral number") from None


def _boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "on", "1", "false", "off", "0"):
        raise pb_utils.TritonModelException(f"failed to convert '{text}' to boolean")
    return lowered in ("true", "on", "1")
