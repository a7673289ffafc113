"""Tensors that an ONNX model declares: completion of a configuration, or comparison with one.

The rules and the texts are those of Triton's onnxruntime backend.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import onnxruntime as ort
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import copied, dims_text
from app.core.errors import internal, invalid_arg, unsupported
from backends.base import Model
from backends.declared import check_dims, controls, declared_dims, unexpected
from backends.signature import Shape

# ONNX's own number for bfloat16 (TensorProto.DataType), which numpy does not have.
ONNX_BFLOAT16: Final = 16

logger = logging.getLogger(__name__)

_DEFAULT_MAX_BATCH_SIZE: Final = "4"
_DEFAULT_BATCH: Final = (
    "model '%s' takes batches of at most %d: set max_batch_size in its configuration, or for all models "
    "--backend-config=onnxruntime,default-max-batch-size=N"
)

# ONNX Runtime's name of an element type: the configuration's.
_TYPES: Final = {
    "tensor(bool)": "TYPE_BOOL",
    "tensor(uint8)": "TYPE_UINT8",
    "tensor(uint16)": "TYPE_UINT16",
    "tensor(uint32)": "TYPE_UINT32",
    "tensor(uint64)": "TYPE_UINT64",
    "tensor(int8)": "TYPE_INT8",
    "tensor(int16)": "TYPE_INT16",
    "tensor(int32)": "TYPE_INT32",
    "tensor(int64)": "TYPE_INT64",
    "tensor(float16)": "TYPE_FP16",
    "tensor(bfloat16)": "TYPE_BF16",
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
    "tensor(string)": "TYPE_STRING",
}

# Values that are no tensors: ONNX Runtime's names in Python and in C.
_KINDS: Final = {"seq": "SEQUENCE", "map": "MAP", "sparse_tensor": "SPARSETENSOR"}


class OnnxTensor(NamedTuple):
    """An input or output of a session; -1 is a dimension without a fixed size.

    An element type that Triton does not have, such as complex64, is TYPE_INVALID. ONNX Runtime has the shape
    [] for a scalar and for a tensor of unknown rank alike.
    """

    config_type: str
    onnx_type: str
    shape: Shape


class OnnxIO(NamedTuple):
    """The tensors of a session; `optional` are initializers that a request may override."""

    inputs: Mapping[str, OnnxTensor]
    optional: Mapping[str, OnnxTensor]
    outputs: Mapping[str, OnnxTensor]


def read_io(session: ort.InferenceSession) -> OnnxIO:
    """Read the tensors of a session.

    Raises:
        InferError: UNSUPPORTED for a sequence, map or sparse tensor.
    """
    return OnnxIO(
        {node.name: _tensor(node) for node in session.get_inputs()},
        {node.name: _tensor(node) for node in session.get_overridable_initializers()},
        {node.name: _tensor(node) for node in session.get_outputs()},
    )


def complete(model: Model, io: OnnxIO) -> mc.ModelConfig:
    """Complete a configuration without inputs or without outputs.

    A model of which every tensor has a variable first dimension can batch: max_batch_size is then the
    configuration's or, at 0, `default-max-batch-size` of the backend configuration; above 1 the dynamic
    batcher is turned on unless a scheduler was chosen.

    Raises:
        InferError: INVALID_ARG when max_batch_size is set and the model cannot batch.
    """
    config = copied(model.config)
    tensors = [*io.inputs.values(), *io.outputs.values()]
    if all(tensor.shape[:1] == (-1,) for tensor in tensors):
        default = model.backend_config.get("default-max-batch-size", _DEFAULT_MAX_BATCH_SIZE)
        if not config.max_batch_size:
            config.max_batch_size = max(int(default), 0)
            logger.info(_DEFAULT_BATCH, model.name, config.max_batch_size)
        if config.max_batch_size > 1 and not config.WhichOneof("scheduling_choice"):
            config.dynamic_batching.SetInParent()
    elif config.max_batch_size:
        raise invalid_arg(
            f"autofill failed for model '{model.name}': model does not support batching while non-zero"
            " max_batch_size is specified"
        )
    if not config.input and not config.batch_input:
        config.input.extend(mc.ModelInput(**fields) for fields in _fields(io.inputs, config.max_batch_size))
    if not config.output:
        config.output.extend(
            mc.ModelOutput(**fields) for fields in _fields(io.outputs, config.max_batch_size)
        )
    return config


def check(config: mc.ModelConfig, io: OnnxIO) -> None:
    """Compare a complete configuration with the model.

    Raises:
        InferError: INVALID_ARG naming the first tensor that differs.
    """
    control_inputs = list(controls(config))
    for name, config_type in control_inputs:
        _check_control(config, name, config_type, io.inputs)
    expected = sum(not tensor.optional for tensor in config.input) + len(config.batch_input)
    expected += len(control_inputs) + len(config.sequence_batching.state)
    if len(io.inputs) != expected:
        raise invalid_arg(
            f"unable to load model '{config.name}', configuration expects {expected} inputs,"
            f" model provides {len(io.inputs)}"
        )
    for tensor in config.input:
        _check_input(config, tensor, {**io.inputs, **io.optional})
    batch_outputs = {name for output in config.batch_output for name in output.target_name}
    for output in config.output:
        found = _find(config, output, io.outputs, "output")
        if output.name not in batch_outputs:
            _check_shape(config, output, found.shape, is_output=True)
    for state in config.sequence_batching.state:
        if state.output_name not in io.outputs:
            raise unexpected("output", state.output_name, io.outputs)


def _tensor(node: ort.NodeArg) -> OnnxTensor:
    kind, _, element = node.type[:-1].partition("(")
    if kind != "tensor":
        raise unsupported(
            f"Unsupported ONNX Type 'ONNX_TYPE_{_KINDS.get(kind, 'UNKNOWN')}' for I/O '{node.name}',"
            " expected 'ONNX_TYPE_TENSOR'."
        )
    shape = tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in node.shape or ())
    return OnnxTensor(_TYPES.get(node.type, "TYPE_INVALID"), element.upper(), shape)


def _fields(tensors: Mapping[str, OnnxTensor], max_batch_size: int) -> Iterator[dict[str, object]]:
    for name, tensor in tensors.items():
        if tensor.config_type == "TYPE_INVALID":
            raise unsupported(
                f"tensor '{name}' of the model has elements of type {tensor.onnx_type}, which Triton's"
                " protocol does not have: a Cast in the graph, to FLOAT16 for instance, makes it another"
            )
        dims = tensor.shape[1:] if max_batch_size else tensor.shape
        fields: dict[str, object] = {"name": name, "data_type": tensor.config_type, "dims": dims or (1,)}
        if not dims and max_batch_size:
            # In a configuration, only a reshape can express "no dimensions", and only with a batch dimension.
            fields["reshape"] = mc.ModelTensorReshape()
        yield fields


def _check_control(
    config: mc.ModelConfig, name: str, config_type: str, inputs: Mapping[str, OnnxTensor]
) -> None:
    if name not in inputs:
        raise internal(
            f"configuration specified sequence control '{name}', but model does not provide that input"
        )
    found = inputs[name]
    dims = found.shape[1:] if config.max_batch_size else found.shape
    if dims != (1,):
        raise invalid_arg(
            f"unable to load model '{config.name}', sequence control '{name}' in model has dims"
            f" {dims_text(dims)} but dims [1] is expected"
        )
    if found.config_type != config_type:
        raise invalid_arg(
            f"unable to load model '{config.name}', sequence control '{name}', the model expects data-type"
            f" {found.onnx_type} but the model configuration specifies data-type {config_type}"
        )


def _check_input(config: mc.ModelConfig, tensor: mc.ModelInput, inputs: Mapping[str, OnnxTensor]) -> None:
    if tensor.optional and config.max_batch_size:
        raise invalid_arg(
            f"unable to load model '{config.name}', optional input '{tensor.name}' is not supported for"
            " models that support batching"
        )
    found = _find(config, tensor, inputs, "input")
    if not tensor.allow_ragged_batch:
        _check_shape(config, tensor, found.shape, is_output=False)
    elif found.shape != (-1,):
        raise invalid_arg(
            f"unable to load model '{config.name}', configuration expects model provides input with shape"
            f" [-1]  for ragged input '{tensor.name}', model provides {dims_text(found.shape)}"
        )


def _find(
    config: mc.ModelConfig,
    tensor: mc.ModelInput | mc.ModelOutput,
    found: Mapping[str, OnnxTensor],
    direction: str,
) -> OnnxTensor:
    if tensor.name not in found:
        raise unexpected(direction, tensor.name, found)
    expected = mc.DataType.Name(tensor.data_type)
    actual = found[tensor.name]
    if actual.config_type != expected:
        raise invalid_arg(
            f"unable to load model '{config.name}', configuration expects datatype {expected} for"
            f" {direction} '{tensor.name}', model provides {actual.config_type}"
        )
    return actual


def _check_shape(
    config: mc.ModelConfig, tensor: mc.ModelInput | mc.ModelOutput, shape: Shape, is_output: bool
) -> None:
    dims = declared_dims(tensor)
    if not shape:
        _check_scalar(config, tensor.name, dims)
        return

    def fits(size: int, dim: int) -> bool:
        """Whether a size allows a declared one; an output may be of any size where -1 is declared."""
        return size in (-1, dim) or (is_output and dim == -1)

    check_dims(config, tensor.name, dims, shape, fits)


def _check_scalar(config: mc.ModelConfig, name: str, dims: Shape) -> None:
    if any(dim != 1 for dim in dims):
        raise invalid_arg(
            f"unable to load model '{config.name}', scalar tensor '{name}', should only provide 1 in the"
            " model configuration when the model doesn't support batching. Model configuration provided:"
            f" {dims_text(dims)}."
        )
