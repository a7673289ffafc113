"""Tensors that a configuration declares, for comparison with those of the model file."""

from collections.abc import Iterable, Iterator
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
