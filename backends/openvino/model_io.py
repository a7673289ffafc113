"""Tensors that a model declares: completion of a configuration, or comparison with one.

The rules and the texts are those of Triton's OpenVINO backend (AutoComplete*, Validate* in src/openvino.cc,
CompareDimsSupported in src/openvino_utils.cc).
"""

import logging
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Final, NamedTuple

import openvino as ov
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import copied, datatype_name, dims_text
from app.core.errors import InferError, internal, invalid_arg
from backends.base import Model
from backends.declared import controls, unexpected
from backends.signature import Shape

logger = logging.getLogger(__name__)

_DEFAULT_MAX_BATCH_SIZE: Final = "4"

TYPES: Final = {
    "TYPE_BOOL": ov.Type.boolean,
    "TYPE_UINT8": ov.Type.u8,
    "TYPE_UINT16": ov.Type.u16,
    "TYPE_UINT32": ov.Type.u32,
    "TYPE_UINT64": ov.Type.u64,
    "TYPE_INT8": ov.Type.i8,
    "TYPE_INT16": ov.Type.i16,
    "TYPE_INT32": ov.Type.i32,
    "TYPE_INT64": ov.Type.i64,
    "TYPE_FP16": ov.Type.f16,
    "TYPE_FP32": ov.Type.f32,
}
"""The data types that Triton's backend supports, and what OpenVINO calls them."""
_NAMES: Final = {kind.get_type_name(): name for name, kind in TYPES.items()} | {
    "f64": "TYPE_FP64",
    "bf16": "TYPE_BF16",
    "string": "TYPE_STRING",
}


class Port(NamedTuple):
    """An input or output of a model; -1 is a dimension without a fixed size.

    Attributes:
        name: the name in a completed configuration.
        names: every name by which a configuration may call it.
        place: its number among the inputs or the outputs.
        config_type: for a type that Triton does not have, OpenVINO's name.
        shape: None for a tensor of unknown rank.
        batches: whether its layout names a batch dimension.
    """

    name: str
    names: frozenset[str]
    place: int
    config_type: str
    shape: Shape | None
    batches: bool


class Ports(NamedTuple):
    """The inputs and the outputs of a model."""

    inputs: Sequence[Port]
    outputs: Sequence[Port]


def read_ports(network: ov.Model) -> Ports:
    """Read the tensors of a model."""
    return Ports(
        [_port(*found) for found in zip(count(), network.inputs, network.get_parameters(), strict=False)],
        [_port(*found) for found in zip(count(), network.outputs, network.get_results(), strict=False)],
    )


def _port(place: int, port: Any, node: Any) -> Port:
    shape, kind = port.get_partial_shape(), port.get_element_type().get_type_name()
    known = not shape.rank.is_dynamic
    return Port(
        port.get_any_name(),
        frozenset(port.get_names()),
        place,
        _NAMES.get(kind, kind),
        tuple(dim.get_length() if dim.is_static else -1 for dim in shape) if known else None,
        ov.layout_helpers.has_batch(node.get_layout()),
    )


def complete(model: Model, ports: Ports) -> mc.ModelConfig:
    """Complete a configuration: max_batch_size and scheduler, and inputs or outputs that are absent.

    A model can batch if the layouts of all its tensors name a batch dimension (N).

    Raises:
        InferError: INTERNAL for a tensor whose type Triton's backend does not support.
    """
    config = copied(model.config)
    if all(port.batches for port in (*ports.inputs, *ports.outputs)):
        _complete_batching(model, config)
    elif config.max_batch_size:
        logger.warning(
            "model layout for model %s does not support batching while non-zero max_batch_size is specified",
            config.name,
        )
    if not config.input:
        config.input.extend(mc.ModelInput(**fields) for fields in _fields(config, ports.inputs, "input"))
    if not config.output:
        config.output.extend(mc.ModelOutput(**fields) for fields in _fields(config, ports.outputs, "output"))
    return config


def _complete_batching(model: Model, config: mc.ModelConfig) -> None:
    if not config.max_batch_size:
        default = model.backend_config.get("default-max-batch-size", _DEFAULT_MAX_BATCH_SIZE)
        config.max_batch_size = max(int(default), 1)
        logger.warning(
            "autofilled max_batch_size to %d for model '%s' since batching is supported but no max_batch_size"
            " is specified in model configuration. Must specify max_batch_size to utilize autofill with a"
            " larger max batch size",
            config.max_batch_size,
            config.name,
        )
    if config.max_batch_size > 1 and not config.WhichOneof("scheduling_choice"):
        config.dynamic_batching.SetInParent()


def _fields(config: mc.ModelConfig, ports: Sequence[Port], direction: str) -> Iterator[dict[str, object]]:
    for port in ports:
        if port.config_type not in TYPES:
            raise _unsupported(config, port.config_type, direction, port.name)
        if port.shape is None:
            raise invalid_arg(
                f"unable to autofill for '{config.name}': {direction} '{port.name}' has no fixed number of"
                f" dimensions; declare its dims in the configuration"
            )
        # One dimension without a fixed size, and Triton writes all as such: clients compare configurations.
        dims = [-1] * len(port.shape) if -1 in port.shape else port.shape
        yield {
            "name": port.name,
            "data_type": port.config_type,
            "dims": dims[1:] if config.max_batch_size else dims,
        }


def check(config: mc.ModelConfig, ports: Ports, reshapes: bool) -> None:
    """Compare a complete configuration with the model.

    Args:
        config: the configuration.
        ports: the model's tensors.
        reshapes: whether the inputs, and with them the outputs, take the configuration's dims.

    Raises:
        InferError: INVALID_ARG naming the first tensor that differs, INTERNAL for an unsupported data type.
    """
    extra = [name for name, _ in controls(config)]
    states = config.sequence_batching.state
    if ragged := [tensor.name for tensor in config.input if tensor.allow_ragged_batch]:
        raise invalid_arg(
            f"unable to load model '{config.name}', ragged input '{ragged[0]}' is not supported by OpenVINO"
        )
    expected = len(config.input) + len(extra) + len(states)
    if len(ports.inputs) != expected:
        raise invalid_arg(
            f"unable to load model '{config.name}', configuration expects {expected} inputs, model provides"
            f" {len(ports.inputs)}"
        )
    for name in (*extra, *(state.input_name for state in states)):
        find(ports.inputs, name, "input")
    for state in states:
        find(ports.outputs, state.output_name, "output")
    for direction, tensors, found in (
        ("input", config.input, ports.inputs),
        ("output", config.output, ports.outputs),
    ):
        for tensor in tensors:
            _check_tensor(config, tensor, find(found, tensor.name, direction), direction, reshapes)


def find(ports: Sequence[Port], name: str, direction: str) -> Port:
    """Return the tensor that a configuration calls so.

    Raises:
        InferError: INVALID_ARG when there is none.
    """
    for port in ports:
        if name in port.names:
            return port
    raise unexpected(direction, name, [port.name for port in ports])


def configured_dims(tensor: mc.ModelInput | mc.ModelOutput) -> Shape:
    """Return the dims of a tensor as the model sees them, batch dimension excluded."""
    return tuple(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)


def _check_tensor(
    config: mc.ModelConfig,
    tensor: mc.ModelInput | mc.ModelOutput,
    port: Port,
    direction: str,
    reshapes: bool,
) -> None:
    kind = datatype_name(tensor.data_type)
    if kind not in TYPES:
        raise _unsupported(config, kind, direction, tensor.name)
    if not reshapes and port.shape is not None:
        _check_shape(config, tensor.name, port.shape, configured_dims(tensor))


def _check_shape(config: mc.ModelConfig, name: str, shape: Shape, dims: Shape) -> None:
    batched = config.max_batch_size > 0
    if batched and not shape:
        raise invalid_arg(
            f"model '{config.name}', tensor '{name}': for the model to support batching the shape should have"
            " at least 1 dimension"
        )
    if len(shape) != len(dims) + batched or not _compatible(shape[batched:], dims):
        raise _mismatch(config, name, shape, dims)


def check_rows(config: mc.ModelConfig, ports: Sequence[Port]) -> None:
    """Check that the outputs have max_batch_size rows, once the inputs have.

    Raises:
        InferError: INVALID_ARG naming the first output that has not.
    """
    for tensor in config.output:
        shape = find(ports, tensor.name, "output").shape
        if shape is not None and shape[:1] not in ((-1,), (config.max_batch_size,)):
            raise _mismatch(config, tensor.name, shape, configured_dims(tensor))


def _mismatch(config: mc.ModelConfig, name: str, shape: Shape, dims: Shape) -> InferError:
    full, specified = dims, f"(shape {dims_text(dims)})"
    if config.max_batch_size:
        full = (config.max_batch_size, *dims)
        specified = (
            "(an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape,"
            f" making complete shape {dims_text(full)})"
        )
    return invalid_arg(
        f"model '{config.name}', tensor '{name}': the model expects {len(shape)} dimensions (shape"
        f" {dims_text(shape)}) but the model configuration specifies {len(full)} dimensions {specified}"
    )


def _compatible(shape: Shape, dims: Shape) -> bool:
    """Whether dims allow a shape; a completed configuration has -1 where the model has a size, too."""
    return all(-1 in (size, dim) or size == dim for size, dim in zip(shape, dims, strict=True))


def _unsupported(config: mc.ModelConfig, kind: str, direction: str, name: str) -> InferError:
    return internal(f"unsupported datatype {kind} for {direction} '{name}' for model '{config.name}'")
