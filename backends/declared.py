"""Tensors that a configuration declares, for comparison with those of the model file."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from tritonclient.grpc import model_config_pb2 as mc

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
