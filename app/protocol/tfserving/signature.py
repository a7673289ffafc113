"""A model as TensorFlow Serving describes it: the signature that its configuration stands for, its labels."""

import json
from math import prod
from typing import Final, NamedTuple

import msgspec
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import TensorSpec, input_specs, output_specs
from app.core.errors import InferError, invalid_arg, not_found

DEFAULT: Final = "serving_default"
LABELS: Final = "version_labels"
"""Parameter of a model configuration: versions by label, as a JSON object."""
ALIASES: Final = "signature_names"
"""Parameter of a model configuration: further names of its signature, as a JSON list."""
DTYPES: Final = {
    "FP32": "DT_FLOAT", "FP64": "DT_DOUBLE", "INT32": "DT_INT32", "UINT8": "DT_UINT8", "INT16": "DT_INT16",
    "INT8": "DT_INT8", "BYTES": "DT_STRING", "INT64": "DT_INT64", "BOOL": "DT_BOOL", "BF16": "DT_BFLOAT16",
    "UINT16": "DT_UINT16", "FP16": "DT_HALF", "UINT32": "DT_UINT32", "UINT64": "DT_UINT64",
}  # fmt: skip
"""TensorFlow's names of the data types."""


class Signature(NamedTuple):
    """Inputs and outputs by name, with the shapes of the model behind the configuration.

    Attributes:
        name: the one signature that is served.
        inputs, outputs: in the order of the configuration.
        aliases: further names of it.
    """

    name: str
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    aliases: frozenset[str] = frozenset()

    def has(self, name: str) -> bool:
        """Return whether a name is one of this signature; "" is the default one's."""
        return name in ("", DEFAULT, self.name) or name in self.aliases

    def require(self, name: str) -> None:
        """Check that a request asks for this signature; "" asks for the default one.

        Raises:
            InferError: INVALID_ARG.
        """
        if not self.has(name):
            raise invalid_arg(f'Serving signature name: "{name}" not found in signature def')


def signature_of(config: mc.ModelConfig) -> Signature:
    """Return the signature of a complete configuration.

    Raises:
        InferError: INVALID_ARG for a parameter `signature_names` that is no list of strings.
    """
    name = config.parameters["TF_SIGNATURE_DEF"].string_value if config.parameters else ""
    inputs = {spec.name: spec for spec in input_specs(config)}
    outputs = {spec.name: spec for spec in output_specs(config)}
    return Signature(name or DEFAULT, inputs, outputs, _aliases(config))


def client_shape(spec: TensorSpec, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Convert a shape of the model behind the configuration, or leave it to the check of the request."""
    try:
        converted = spec.client_shape(shape)
    except ValueError:
        return shape
    return converted if prod(converted) == prod(shape) else shape


def _aliases(config: mc.ModelConfig) -> frozenset[str]:
    if not config.parameters or ALIASES not in config.parameters:
        return frozenset()
    try:
        return frozenset(msgspec.json.decode(config.parameters[ALIASES].string_value, type=list[str]))
    except msgspec.MsgspecError:
        text = f"the parameter '{ALIASES}' of '{config.name}' is no JSON list of strings"
        raise invalid_arg(text) from None


def labelled_version(config: mc.ModelConfig, label: str) -> str:
    """Return the version that a label stands for.

    Raises:
        InferError: INVALID_ARG, in TensorFlow Serving's words, for an unknown label.
    """
    labels = {}
    if LABELS in config.parameters:
        try:
            labels = json.loads(config.parameters[LABELS].string_value)
        except ValueError:
            raise invalid_arg(f"the parameter '{LABELS}' of '{config.name}' is no JSON object") from None
    if not isinstance(labels, dict) or label not in labels:
        raise invalid_arg(f"Unrecognized servable version label: {label}")
    return str(labels[label])


def servable_not_found(model: str, version: str) -> InferError:
    """Return the error for a model or version that is unknown, in TensorFlow Serving's words."""
    wanted = f"Specific({model}, {version})" if version else f"Latest({model})"
    return not_found(f"Servable not found for request: {wanted}")
