"""Tensors that a configuration declares, for comparison with those of the model file."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import copied, dims_text
from app.core.errors import InferError, invalid_arg

_BOOLEAN_CONTROLS: Final = {
    "int32_false_true": "TYPE_INT32",
    "fp32_false_true": "TYPE_FP32",
    "bool_false_true": "TYPE_BOOL",
}


def controls(config: mc.ModelConfig) -> Iterator[tuple[str, str]]:
    """Return the data types of the sequence control tensors, by name."""
    for control_input in config.sequence_batching.control_input:
        for control in control_input.control:
            boolean = next((kind for key, kind in _BOOLEAN_CONTROLS.items() if getattr(control, key)), None)
            yield control_input.name, boolean or mc.DataType.Name(control.data_type)


def unexpected(direction: str, name: str, allowed: Iterable[str]) -> InferError:
    """Return Triton's text for a tensor that the model does not have; it sorts the model's names."""
    names = ", ".join(sorted(allowed))
    return invalid_arg(f"unexpected inference {direction} '{name}', allowed {direction}s are: {names}")


Tensors = Mapping[str, tuple[mc.DataType, Sequence[int]]]
"""Data types and dims by name."""


def complete_tensors(
    config: mc.ModelConfig, inputs: Tensors, outputs: Tensors, required: Iterable[str]
) -> None:
    """Declare the tensors of a backend whose models all have the same; what is declared must be among them.

    Raises:
        InferError: INVALID_ARG for another name or data type, or a required input that is missing.
    """
    if not config.input:
        for name, (data_type, dims) in inputs.items():
            config.input.add(name=name, data_type=data_type, dims=dims, optional=name not in required)
    if not config.output:
        for name, (data_type, dims) in outputs.items():
            config.output.add(name=name, data_type=data_type, dims=dims)
    check_tensors(config, inputs, outputs, required)


def check_tensors(config: mc.ModelConfig, inputs: Tensors, outputs: Tensors, required: Iterable[str]) -> None:
    """Check declared tensors against those that a backend has; see `complete_tensors`."""
    for direction, declared, known in (("input", config.input, inputs), ("output", config.output, outputs)):
        for tensor in declared:
            if tensor.name not in known:
                raise unexpected(direction, tensor.name, known)
            expected = known[tensor.name][0]
            if tensor.data_type != expected:
                raise invalid_arg(
                    f"unable to load model '{config.name}', configuration expects datatype"
                    f" {mc.DataType.Name(tensor.data_type)} for {direction} '{tensor.name}', model provides"
                    f" {mc.DataType.Name(expected)}"
                )
    missing = sorted(set(required) - {tensor.name for tensor in config.input})
    if missing:
        raise invalid_arg(f"unable to load model '{config.name}', input '{missing[0]}' is missing")


def with_completed(config: mc.ModelConfig, completed: mc.ModelConfig) -> mc.ModelConfig:
    """Return a copy with what a backend's code may complete, but for the scheduler."""
    result = copied(config)
    result.max_batch_size = completed.max_batch_size
    for field in ("input", "output"):
        result.ClearField(field)
        getattr(result, field).extend(getattr(completed, field))
    if completed.HasField("model_transaction_policy"):
        result.model_transaction_policy.CopyFrom(completed.model_transaction_policy)
    return result


def declared_dims(tensor: mc.ModelInput | mc.ModelOutput) -> tuple[int, ...]:
    """Return the dimensions in which the framework sees a tensor, without the batch dimension."""
    return tuple(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)


def check_dims(
    config: mc.ModelConfig,
    name: str,
    dims: tuple[int, ...],
    shape: tuple[int, ...],
    fits: Callable[[int, int], bool],
) -> None:
    """Compare the declared dimensions of a tensor with its shape in the model.

    Args:
        config: the configuration.
        name: the tensor.
        dims: as declared, without the batch dimension.
        shape: the model's, batch dimension included, -1 for a variable size.
        fits: whether a size of the model allows a declared one.

    Raises:
        InferError: INVALID_ARG with Triton's text (CompareDims of its backends).
    """
    where = f"model '{config.name}', tensor '{name}'"
    specified = f"(shape {dims_text(dims)})"
    if config.max_batch_size:
        if shape[:1] != (-1,):
            raise invalid_arg(
                f"{where}: for the model to support batching the shape should have at least 1 dimension and"
                f" the first dimension must be -1; but shape expected by the model is {dims_text(shape)}"
            )
        dims = (-1, *dims)
        specified = (
            "(an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape,"
            f" making complete shape {dims_text(dims)})"
        )
    if len(shape) != len(dims) or not all(map(fits, shape, dims)):
        raise invalid_arg(
            f"{where}: the model expects {len(shape)} dimensions (shape {dims_text(shape)}) but the model"
            f" configuration specifies {len(dims)} dimensions {specified}"
        )
