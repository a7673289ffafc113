"""Inputs and outputs of a model of trees: completion of a configuration, and comparison with one."""

from collections.abc import Mapping
from math import prod
from typing import Final

from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import copied, dims_text
from app.core.errors import invalid_arg
from backends.base import Model
from backends.declared import unexpected
from backends.fil.forest import Forest
from backends.fil.settings import Settings

INPUT: Final = "input__0"
OUTPUT: Final = "output__0"
SHAP: Final = "treeshap_output"
_DEFAULT_MAX_BATCH_SIZE: Final = "32768"
"""As in the examples of Triton's fil_backend; a row is small, and quickly answered."""


def complete(model: Model, forest: Forest, settings: Settings, is_classifier: bool) -> mc.ModelConfig:
    """Complete a configuration without inputs or without outputs; Triton completes none.

    Without both, max_batch_size is set too, and the dynamic batcher is turned on unless there is a scheduler.
    """
    config = copied(model.config)
    if not config.input and not config.output:
        default = model.backend_config.get("default-max-batch-size", _DEFAULT_MAX_BATCH_SIZE)
        config.max_batch_size = config.max_batch_size or max(int(default), 0)
        if config.max_batch_size > 1 and not config.WhichOneof("scheduling_choice"):
            config.dynamic_batching.SetInParent()
    if not config.input:
        config.input.add(name=INPUT, data_type=mc.TYPE_FP32, dims=[forest.features])
    if not config.output:
        wide = settings.predict_proba and is_classifier
        dims = [max(forest.classes, 2) if wide else 1 if is_classifier else forest.classes]
        config.output.add(name=OUTPUT, data_type=mc.TYPE_FP32, dims=dims)
    return config


def check(config: mc.ModelConfig, forest: Forest, widths: Mapping[str, tuple[int, ...]]) -> None:
    """Compare a complete configuration with the model.

    Args:
        config: the configuration.
        forest: the model's trees.
        widths: numbers of values for a row that an output may have, by its name.

    Raises:
        InferError: INVALID_ARG naming the first tensor that differs.
    """
    if len(config.input) != 1:
        raise invalid_arg(
            f"unable to load model '{config.name}', configuration expects {len(config.input)} inputs,"
            " model provides 1"
        )
    _check(config, config.input[0], {INPUT: (forest.features,)}, "input")
    for output in config.output:
        _check(config, output, widths, "output")


def _check(
    config: mc.ModelConfig,
    tensor: mc.ModelInput | mc.ModelOutput,
    allowed: Mapping[str, tuple[int, ...]],
    direction: str,
) -> None:
    if tensor.name not in allowed:
        raise unexpected(direction, tensor.name, allowed)
    if tensor.data_type != mc.TYPE_FP32:
        raise invalid_arg(
            f"unable to load model '{config.name}', configuration expects datatype"
            f" {mc.DataType.Name(tensor.data_type)} for {direction} '{tensor.name}', model provides TYPE_FP32"
        )
    dims = tuple(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)
    widths = allowed[tensor.name]
    if -1 in dims or prod(dims) in widths:
        return
    shapes = " or ".join(dims_text((-1, width)) for width in widths)
    raise invalid_arg(
        f"model '{config.name}', tensor '{tensor.name}': the model expects 2 dimensions (shape {shapes}) but"
        f" the model configuration specifies {len(dims)} dimensions (shape {dims_text(dims)})"
    )
