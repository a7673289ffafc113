"""What a configuration declares, as backends hold it against what a model file says."""

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
    """Sequence control tensors and their data types."""
    for control_input in config.sequence_batching.control_input:
        for control in control_input.control:
            boolean = next((kind for key, kind in _BOOLEAN_CONTROLS.items() if getattr(control, key)), None)
            yield control_input.name, boolean or mc.DataType.Name(control.data_type)


def unexpected(direction: str, name: str, allowed: Iterable[str]) -> InferError:
    """Triton's text for a tensor that the model does not have; it keeps the names in a sorted set."""
    names = ", ".join(sorted(allowed))
    return invalid_arg(f"unexpected inference {direction} '{name}', allowed {direction}s are: {names}")
