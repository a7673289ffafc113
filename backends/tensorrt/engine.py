"""Tensors that a TensorRT engine declares: completion of a configuration, or comparison with one.

The rules and the texts are those of Triton's tensorrt backend (src/model_state.cc, src/instance_state.cc and
src/tensorrt_utils.cc). Nothing here imports TensorRT: only methods of the engine are called.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import copied, dims_text
from app.core.errors import internal, invalid_arg
from backends.declared import controls, unexpected
from backends.signature import Shape
from backends.tensorrt.profiles import Profile, Range, profiles_of

logger = logging.getLogger(__name__)

Io: TypeAlias = mc.ModelInput | mc.ModelOutput

_TYPES: Final = {
    "FLOAT": "TYPE_FP32",
    "HALF": "TYPE_FP16",
    "BF16": "TYPE_BF16",
    "INT8": "TYPE_INT8",
    "INT32": "TYPE_INT32",
    "INT64": "TYPE_INT64",
    "UINT8": "TYPE_UINT8",
    "BOOL": "TYPE_BOOL",
}


class EngineTensor(NamedTuple):
    """An input or output; -1 is a dimension without a fixed size.

    Attributes:
        config_type: "TYPE_FP32".
        shape: batch dimension included.
        is_shape: whether its values decide shapes (a shape tensor).
        on_host: whether TensorRT reads or writes it in host memory.
    """

    config_type: str
    shape: Shape
    is_shape: bool = False
    on_host: bool = False


class EngineIO(NamedTuple):
    """The tensors and profiles of an engine, in its order."""

    inputs: Mapping[str, EngineTensor]
    outputs: Mapping[str, EngineTensor]
    profiles: Sequence[Profile]


def read_io(engine: Any) -> EngineIO:
    """Read the tensors of a `tensorrt.ICudaEngine`.

    Raises:
        InferError: INVALID_ARG for a data type or a memory layout that cannot be served.
    """
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    inputs = [name for name in names if engine.get_tensor_mode(name).name == "INPUT"]
    tensors = {name: _tensor(engine, name) for name in names}
    profiles = [_profile(engine, index, inputs, tensors) for index in range(engine.num_optimization_profiles)]
    return EngineIO(
        {name: tensors[name] for name in inputs},
        {name: tensors[name] for name in names if name not in inputs},
        profiles,
    )


def _tensor(engine: Any, name: str) -> EngineTensor:
    kind, layout = engine.get_tensor_dtype(name).name, engine.get_tensor_format(name).name
    if kind not in _TYPES:
        raise invalid_arg(f"unsupported TensorRT data type {kind} for tensor '{name}'")
    if layout != "LINEAR":
        raise invalid_arg(f"tensor '{name}' has the TensorRT format {layout}; only LINEAR is supported")
    on_host = engine.get_tensor_location(name).name == "HOST"
    shape = tuple(engine.get_tensor_shape(name))
    return EngineTensor(_TYPES[kind], shape, bool(engine.is_shape_inference_io(name)), on_host)


def _profile(engine: Any, index: int, inputs: Sequence[str], tensors: Mapping[str, EngineTensor]) -> Profile:
    shapes, values = {}, {}
    for name in inputs:
        fixed = tensors[name].shape
        bounds = engine.get_tensor_profile_shape(name, index) if -1 in fixed else [fixed] * 3
        shapes[name] = Range(*map(tuple, bounds))
        if tensors[name].is_shape:
            # By position: the names of these two arguments are the wrong way round in TensorRT 10 and 11.
            values[name] = Range(*map(tuple, engine.get_tensor_profile_values(index, name)))
    return Profile(index, shapes, values)


def complete(config: mc.ModelConfig, io: EngineIO) -> mc.ModelConfig:
    """Complete a configuration: max_batch_size, the dynamic batcher, inputs and outputs with their fields.

    An engine batches when the first dimension of every tensor is variable, up to the largest batch of a
    profile in use, unless the dims of the configuration are those of whole tensors.

    Raises:
        InferError: INVALID_ARG or INTERNAL where the configuration contradicts the engine.
    """
    config = copied(config)
    largest = _max_batch_size(config, io)
    if config.max_batch_size > largest:
        raise internal(
            f"autofill failed for model '{config.name}': configuration specified max-batch"
            f" {config.max_batch_size} but TensorRT engine only supports max-batch {largest}"
        )
    config.max_batch_size = config.max_batch_size or largest
    if config.max_batch_size > 1 and not config.WhichOneof("scheduling_choice"):
        config.dynamic_batching.SetInParent()
    reserved = _server_tensors(config)
    if not config.input:
        config.input.extend(mc.ModelInput(name=name) for name in io.inputs if name not in reserved)
    if not config.output:
        config.output.extend(mc.ModelOutput(name=name) for name in io.outputs if name not in reserved)
    for tensor, known in _pairs(config, io):
        _fill(tensor, known, config.max_batch_size > 0)
    return config


def _server_tensors(config: mc.ModelConfig) -> set[str]:
    """Return the names of tensors that the server makes or keeps, which requests do not have."""
    names = {name for name, _ in controls(config)}
    for state in config.sequence_batching.state:
        names |= {state.input_name, state.output_name}
    return names.union(*(made.target_name for made in config.batch_input))


def _max_batch_size(config: mc.ModelConfig, io: EngineIO) -> int:
    tensors = [tensor for tensor in (*io.inputs.values(), *io.outputs.values()) if not tensor.is_shape]
    used = [name for group in config.instance_group for name in group.profile]
    largest = 0
    if all(tensor.shape[:1] == (-1,) for tensor in tensors):
        batches = [name for name, tensor in io.inputs.items() if not tensor.is_shape]
        largest = max(
            min((profile.shapes[name].high[0] for name in batches), default=0)
            for profile in profiles_of(used, io.profiles, config.name)
        )
    hints = _batch_hints(config, io)
    if not hints:
        return largest
    if len(hints) > 1:
        raise internal(
            f"unable to autofill for '{config.name}', model tensor configurations are contradicting each"
            " other in terms of whether batching is supported"
        )
    if True in hints and not largest:
        raise internal(
            f"autofill failed for model '{config.name}': model tensor shape configuration hints for dynamic"
            " batching but the underlying engine doesn't support batching."
        )
    if False in hints and largest:
        logger.warning(
            "The specified dimensions in model config for %s hints that batching is unavailable", config.name
        )
    return largest if True in hints else 0


def _batch_hints(config: mc.ModelConfig, io: EngineIO) -> set[bool]:
    """Return whether the given dims leave out a batch dimension: no hint, one, or contradictory ones."""
    hints: set[bool] = set()
    for tensor, known in _pairs(config, io):
        if getattr(tensor, "allow_ragged_batch", False):
            return {True}
        if dims := _dims(tensor):
            hints.add(dims[0] + 1 == known.shape[0] if known.is_shape else len(dims) + 1 == len(known.shape))
    return hints


def _pairs(config: mc.ModelConfig, io: EngineIO) -> Iterator[tuple[Io, EngineTensor]]:
    """Return the inputs and outputs of a configuration, each with its tensor of the engine.

    Raises:
        InferError: INVALID_ARG for a tensor that the engine does not have.
    """
    for direction, tensors, known in (
        ("input", config.input, io.inputs),
        ("output", config.output, io.outputs),
    ):
        for tensor in tensors:
            if tensor.name not in known:
                raise unexpected(direction, tensor.name, known)
            yield tensor, known[tensor.name]


def _dims(tensor: Io) -> Shape:
    return tuple(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)


def _fill(tensor: Io, known: EngineTensor, batched: bool) -> None:
    """Set the fields of a tensor that a configuration leaves open."""
    if not tensor.data_type:
        tensor.data_type = mc.DataType.Value(known.config_type)
    if not tensor.dims:
        if known.is_shape:
            tensor.dims.extend(size - batched for size in known.shape[:1])
        else:
            tensor.dims.extend(known.shape[1:] if batched else known.shape)
        if not tensor.dims:
            # In a configuration, only a reshape can express "no dimensions".
            tensor.dims.append(1)
            tensor.reshape.SetInParent()
        tensor.is_shape_tensor = known.is_shape
    elif tensor.is_shape_tensor != known.is_shape:
        kind = "a shape" if tensor.is_shape_tensor else "an execution"
        raise invalid_arg(f"'{tensor.name}' is incorrectly specified as {kind} tensor.")


def check(config: mc.ModelConfig, io: EngineIO) -> None:
    """Compare a complete configuration with the engine.

    Raises:
        InferError: INVALID_ARG or INTERNAL naming the first tensor that differs.
    """
    if len(config.input) > len(io.inputs):
        raise invalid_arg(
            f"unable to load model '{config.name}', configuration expects {len(config.input)} inputs, model"
            f" provides at most {len(io.inputs)}"
        )
    for tensor, known in _pairs(config, io):
        direction = "input" if isinstance(tensor, mc.ModelInput) else "output"
        _check_kind(config, direction, tensor, known)
        kind = mc.DataType.Name(tensor.data_type)
        _check_type(config.name, direction, tensor.name, kind, known)
        _check_dims(config, tensor, known)
    for name, kind in controls(config):
        if name not in io.inputs:
            raise unexpected("input", name, io.inputs)
        _check_type(config.name, "input", name, kind, io.inputs[name])
    present = _server_tensors(config) | {tensor.name for tensor in (*config.input, *config.output)}
    for direction, tensors in (("input", io.inputs), ("output", io.outputs)):
        for name in tensors:
            if name not in present:
                raise invalid_arg(f"expected configuration for {direction} '{name}' for {config.name}")


def _check_kind(config: mc.ModelConfig, direction: str, tensor: Io, known: EngineTensor) -> None:
    where = f"{direction} '{tensor.name}' for model '{config.name}' is"
    if known.is_shape and not tensor.is_shape_tensor:
        raise internal(
            f"{where} a shape tensor but the model configuration doesn't mark it as a shape tensor."
        )
    if tensor.is_shape_tensor and not known.is_shape:
        raise internal(f"{where} incorrectly marked as a shape tensor in the model configuration.")
    if known.is_shape and config.max_batch_size:
        raise invalid_arg(f"{where} a shape tensor, which is not supported with max_batch_size above 0")


def _check_type(model: str, direction: str, name: str, kind: str, known: EngineTensor) -> None:
    if kind != known.config_type:
        raise invalid_arg(
            f"unexpected datatype {known.config_type} for inference {direction} '{name}', expecting {kind}"
            f" for {model}"
        )


def _check_dims(config: mc.ModelConfig, tensor: Io, known: EngineTensor) -> None:
    dims, where = _dims(tensor), f"model '{config.name}', tensor '{tensor.name}'"
    if getattr(tensor, "allow_ragged_batch", False):
        if known.shape != dims[:1] or len(known.shape) != 1:
            raise invalid_arg(
                f"{where}: for the model to support ragged input, the engine shape is:"
                f" {dims_text(known.shape)} while the model config shape is: {dims_text(dims)}"
            )
        return
    specified = f"(shape {dims_text(dims)})"
    if config.max_batch_size:
        dims = (-1, *dims)
        specified = (
            "(an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape,"
            f" making complete shape {dims_text(dims)})"
        )
    if len(known.shape) != len(dims) or any(
        -1 not in (size, dim) and size != dim for size, dim in zip(known.shape, dims, strict=True)
    ):
        raise invalid_arg(
            f"{where}: the model expects {len(known.shape)} dimensions (shape {dims_text(known.shape)}) but"
            f" the model configuration specifies {len(dims)} dimensions {specified}"
        )
