"""How an engine is built from `model.onnx`: parameters of a model, its profile, the key of the result.

Parameters have the names of ONNX Runtime's TensorRT provider, by which Triton builds engines. Nothing here
imports TensorRT.
"""

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import invalid_arg
from backends.base import Model
from backends.parameters import integer
from backends.signature import Shape
from backends.tensorrt.profiles import Range

PRECISIONS: Final = ("FP32", "FP16", "BF16", "INT8")
_LEVELS: Final = range(6)
_LEVEL: Final = "trt_builder_optimization_level"
_BOUNDS: Final = ("min", "opt", "max")


class BuildOptions(NamedTuple):
    """What the builder is told.

    Attributes:
        precision: of `PRECISIONS`; layers may also run in FP32.
        level: 0 to 5, more time for a faster engine; None for TensorRT's default.
        workspace_bytes: limit of a layer's temporary memory; 0 for all of the GPU's.
        shapes: least, best and largest shape of the inputs that the configuration names.
    """

    precision: str
    level: int | None
    workspace_bytes: int
    shapes: Mapping[str, Range]


def build_options(model: Model) -> BuildOptions:
    """Read the parameters of a model.

    Raises:
        InferError: INVALID_ARG for a value that is none of those possible.
    """
    precision = model.parameter("precision_mode", "FP32")
    if precision not in PRECISIONS:
        known = ", ".join(PRECISIONS)
        raise invalid_arg(
            f"parameter 'precision_mode' of model '{model.name}' is '{precision}', must be one of {known}"
        )
    level = integer(model, _LEVEL, -1)
    if model.parameter(_LEVEL) and level not in _LEVELS:
        raise invalid_arg(f"parameter '{_LEVEL}' of model '{model.name}' must be from 0 to 5, got {level}")
    workspace = max(0, integer(model, "max_workspace_size_bytes"))
    return BuildOptions(precision, level if level in _LEVELS else None, workspace, _declared_shapes(model))


def _declared_shapes(model: Model) -> dict[str, Range]:
    """Read `trt_profile_{min,opt,max}_shapes`, each "in:1x3x224x224,other:1x8"."""
    texts = [model.parameter(f"trt_profile_{bound}_shapes") for bound in _BOUNDS]
    if not any(texts):
        return {}
    low, best, high = (_shapes(text, model.name) for text in texts)
    if not low.keys() == best.keys() == high.keys():
        raise invalid_arg(
            f"parameters trt_profile_min_shapes, trt_profile_opt_shapes and trt_profile_max_shapes of model"
            f" '{model.name}' must name the same inputs"
        )
    return {name: Range(low[name], best[name], high[name]) for name in low}


def _shapes(text: str, model: str) -> dict[str, Shape]:
    shapes = {}
    for part in filter(None, text.split(",")):
        name, _, sizes = part.strip().rpartition(":")
        try:
            shapes[name] = tuple(int(size) for size in sizes.split("x"))
        except ValueError:
            name = ""
        if not name:
            raise invalid_arg(
                f"'{part}' in a trt_profile parameter of model '{model}' is not NAME:1x3x224x224"
            )
    return shapes


def profile(config: mc.ModelConfig, options: BuildOptions, inputs: Mapping[str, Shape]) -> dict[str, Range]:
    """Return the optimization profile: the shapes of each input whose shape is not fixed.

    By default the first dimension goes from 1 to `max_batch_size`, best at the largest preferred batch size.

    Args:
        config: of the model.
        options: declared shapes go before the default.
        inputs: shapes of the ONNX model's inputs, -1 for a size that varies.

    Raises:
        InferError: INVALID_ARG for an input with sizes that nothing says, and for one that does not exist.
    """
    if unknown := options.shapes.keys() - inputs.keys():
        raise invalid_arg(
            f"trt_profile parameters of model '{config.name}' name {', '.join(sorted(unknown))}, the ONNX"
            f" model has {', '.join(sorted(inputs))}"
        )
    largest = max(1, config.max_batch_size)
    best = max(config.dynamic_batching.preferred_batch_size, default=largest)
    ranges = {}
    for name, shape in inputs.items():
        if name in options.shapes:
            ranges[name] = options.shapes[name]
        elif -1 in shape[1:]:
            raise invalid_arg(
                f"input '{name}' of model '{config.name}' has the shape {list(shape)}: parameters"
                " trt_profile_min_shapes, trt_profile_opt_shapes and trt_profile_max_shapes must say them"
            )
        elif shape[:1] == (-1,):
            rest = shape[1:]
            ranges[name] = Range((1, *rest), (min(best, largest), *rest), (largest, *rest))
    return ranges


def engine_key(files: Sequence[Path], config: mc.ModelConfig, options: BuildOptions, machine: str) -> str:
    """Return the name of a built engine: the same for the same model, options, TensorRT and GPU.

    Args:
        files: the ONNX file and those of its weights, whose content counts.
        config: its batch sizes are in the default profile.
        options: how it is built.
        machine: versions and GPU.
    """
    batches = [config.max_batch_size, *config.dynamic_batching.preferred_batch_size]
    digest = blake2b(json.dumps([machine, batches, options]).encode(), digest_size=16)
    for path in files:
        digest.update(f"\0{path.name}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
