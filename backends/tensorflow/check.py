"""Comparison of a complete configuration with a TensorFlow model.

The texts are those of Triton's tensorflow backend (ValidateTRITONTFModel and ValidateModelConfig in
src/tensorflow.cc).
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import datatype_name, dims_text
from app.core.errors import InferError, internal, invalid_arg
from backends.declared import check_dims, controls, declared_dims, unexpected
from backends.signature import Shape
from backends.tensorflow.signature import TYPES, TfSignature, TfTensor


def check_types(config: mc.ModelConfig) -> None:
    """Check that TensorFlow has the data types of a configuration.

    Raises:
        InferError: INVALID_ARG for the first that it has not.
    """
    supported = set(TYPES.values())
    for tensor in (*config.input, *config.output):
        kind = datatype_name(tensor.data_type)
        if kind not in supported:
            raise invalid_arg(
                f"unsupported datatype '{kind}' for tensor '{tensor.name}' for model '{config.name}'"
            )


def check_signature(config: mc.ModelConfig, signature: TfSignature) -> None:
    """Compare a configuration with the signature of a SavedModel.

    Raises:
        InferError: INVALID_ARG or INTERNAL naming the first tensor that differs.
    """
    made = list(controls(config))
    for name, kind in made:
        _check_control(config, name, kind, signature.inputs)
    _check_names("input", config.input, signature.inputs)
    expected = len(config.input) + len(config.batch_input) + len(made) + len(config.sequence_batching.state)
    if expected != len(signature.inputs):
        raise _other_count(config, expected, f"{len(signature.inputs)}")
    for tensor in config.input:
        found = signature.inputs[tensor.name]
        if tensor.allow_ragged_batch:
            _check_ragged(config, tensor.name, found)
        else:
            _check_shape(config, tensor, found.shape, exact=False)
        _check_type(config, "input", tensor, found)
    _check_names("output", config.output, signature.outputs)
    scattered = {name for output in config.batch_output for name in output.target_name}
    for tensor in config.output:
        found = signature.outputs[tensor.name]
        if tensor.name not in scattered:
            _check_shape(config, tensor, found.shape, exact=True)
        _check_type(config, "output", tensor, found)
    for state in config.sequence_batching.state:
        if state.output_name not in signature.outputs:
            raise unexpected("output", state.output_name, signature.outputs)


def check_graph(config: mc.ModelConfig, placeholders: Collection[str], others: Collection[str]) -> None:
    """Compare a configuration with the operations of a GraphDef, of which names alone are known.

    Args:
        config: the configuration.
        placeholders: the operations that may be inputs.
        others: all other operations, which may be outputs.

    Raises:
        InferError: INVALID_ARG or INTERNAL naming the first tensor that the graph lacks.
    """
    made = [*controls(config), *config.sequence_batching.state, *config.batch_input]
    if not config.output or (placeholders and not (config.input or made)):
        raise invalid_arg(
            f"the configuration of model '{config.name}' must declare its inputs and outputs: a GraphDef does"
            f" not say which they are. It has the placeholders {', '.join(sorted(placeholders)) or '(none)'}"
        )
    if len(placeholders) < len(config.input):
        raise _other_count(config, len(config.input), f"at most {len(placeholders)}")
    for name, _ in controls(config):
        if _operation(name) not in placeholders:
            raise _no_control(name)
    _check_names("input", config.input, placeholders)
    _check_names("output", config.output, others)


def _operation(name: str) -> str:
    return name.partition(":")[0]


def _check_names(direction: str, tensors: Iterable[Any], allowed: Collection[str]) -> None:
    for tensor in tensors:
        if tensor.name not in allowed and _operation(tensor.name) not in allowed:
            raise unexpected(direction, tensor.name, allowed)


def _other_count(config: mc.ModelConfig, expected: int, provided: str) -> InferError:
    return invalid_arg(
        f"unable to load model '{config.name}', configuration expects {expected} inputs, model provides"
        f" {provided}"
    )


def _no_control(name: str) -> InferError:
    return internal(
        f"configuration specified sequence control '{name}', but model does not provide that input"
    )


def _check_control(config: mc.ModelConfig, name: str, kind: str, inputs: Mapping[str, TfTensor]) -> None:
    if name not in inputs:
        raise _no_control(name)
    found = inputs[name]
    where = f"unable to load model '{config.name}', sequence control '{name}'"
    control = mc.ModelInput(name=name, dims=[1])
    try:
        _check_shape(config, control, found.shape, exact=True)
    except InferError as error:
        raise invalid_arg(f"{where}: {error.message}") from None
    if found.config_type != kind:
        raise invalid_arg(
            f"{where}: the model expects {found.config_type} but the model configuration specifies data-type"
            f" {kind}"
        )


def _check_ragged(config: mc.ModelConfig, name: str, found: TfTensor) -> None:
    if found.shape not in (None, (-1,)):
        raise invalid_arg(
            f"unable to load model '{config.name}', configuration expects model provides input with shape"
            f" [-1]  for ragged input '{name}', model provides {dims_text(found.shape or ())}"
        )


def _check_type(
    config: mc.ModelConfig, direction: str, tensor: mc.ModelInput | mc.ModelOutput, found: TfTensor
) -> None:
    declared = datatype_name(tensor.data_type)
    if found.config_type != declared:
        raise invalid_arg(
            f"unable to load model '{config.name}', configuration expects datatype {declared} for {direction}"
            f" '{tensor.name}', model provides {found.config_type}"
        )


def _check_shape(
    config: mc.ModelConfig, tensor: mc.ModelInput | mc.ModelOutput, shape: Shape | None, exact: bool
) -> None:
    """Compare the declared dims with the model's shape.

    Args:
        config: the configuration.
        tensor: an input or output of it.
        shape: the model's; any dims fit where it is None.
        exact: whether a variable size of the model must be declared as one.
    """
    if shape is None:
        return
    dims = declared_dims(tensor)
    if not shape and not config.max_batch_size:
        dims = tuple(dim for dim in dims if dim != 1)  # a configuration has no other way to declare a scalar

    def fits(size: int, dim: int) -> bool:
        return size == dim or (size == -1 and not exact)

    check_dims(config, tensor.name, dims, shape, fits)
