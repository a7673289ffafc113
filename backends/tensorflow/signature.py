"""The tensors of a TensorFlow model, described without TensorFlow."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from app.core.errors import InferError, internal
from backends.signature import Shape

TYPES: Final = {
    "DT_BOOL": "TYPE_BOOL",
    "DT_UINT8": "TYPE_UINT8",
    "DT_UINT16": "TYPE_UINT16",
    "DT_UINT32": "TYPE_UINT32",
    "DT_UINT64": "TYPE_UINT64",
    "DT_INT8": "TYPE_INT8",
    "DT_INT16": "TYPE_INT16",
    "DT_INT32": "TYPE_INT32",
    "DT_INT64": "TYPE_INT64",
    "DT_HALF": "TYPE_FP16",
    "DT_FLOAT": "TYPE_FP32",
    "DT_DOUBLE": "TYPE_FP64",
    "DT_STRING": "TYPE_STRING",
}
"""TensorFlow's name of a data type: the configuration's. Triton's backend has no others."""


class TfTensor(NamedTuple):
    """An input or output of a model.

    Attributes:
        tensor: its name in the graph, such as "serving_default_x:0".
        config_type: data type as the configuration names it.
        shape: with -1 for a variable size; None for an unknown number of dimensions.
    """

    tensor: str
    config_type: str
    shape: Shape | None

    @property
    def is_scalar(self) -> bool:
        """Whether it has no dimensions."""
        return self.shape == ()


class TfSignature(NamedTuple):
    """A signature of a SavedModel: its inputs and outputs by name."""

    inputs: Mapping[str, TfTensor]
    outputs: Mapping[str, TfTensor]


class TensorNames(NamedTuple):
    """Names in the graph of what an execution feeds and fetches, by names of the configuration."""

    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


def unsupported_type(model: str, direction: str, name: str, data_type: str) -> InferError:
    """Return Triton's text for a tensor of a data type that it does not have."""
    return internal(
        f"unable to process {direction} '{name}' for '{model}', unsupported datatype '{data_type}'"
    )


def in_graph(name: str) -> str:
    """Return the name of a tensor in a GraphDef, whose configuration may name the operation alone."""
    return name if ":" in name else f"{name}:0"
