"""What a model takes and gives, and the values of a call in its terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from nereid_client.datatypes import Array, to_array
from nereid_client.errors import InputError


@dataclass(frozen=True)
class TensorSpec:
    """An input or output.

    Attributes:
        shape: with the batch dimension, where the model has one; -1 for any size.
        optional: a call may leave it out.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False

    def __str__(self) -> str:
        return f"{self.name} {self.datatype}{list(self.shape)}"


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of a model version.

    Attributes:
        batched: the first dimension of each shape is the batch.
        decoupled: a request may have any number of responses.
    """

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    batched: bool = False
    decoupled: bool = False

    def __str__(self) -> str:
        inputs, outputs = (", ".join(map(str, side.values())) for side in (self.inputs, self.outputs))
        return f"{inputs} -> {outputs}"

    def arrays(self, values: Mapping[str, Any]) -> tuple[dict[str, Array], bool]:
        """Return the values as arrays of the model's shapes, and whether a batch dimension was added.

        One is added where no value has it. A number, a string or bytes fills any shape of one element.

        Raises:
            InputError: an input is missing, unknown, or of another datatype or shape.
        """
        self._check_names(values)
        arrays = {name: to_array(name, value, self.inputs[name].datatype) for name, value in values.items()}
        lacking = [name for name, array in arrays.items() if self._lacks_batch(name, array)]
        full = [name for name, array in arrays.items() if array.ndim == len(self.inputs[name].shape)]
        if lacking and full:
            raise InputError(
                f"input '{full[0]}' has a batch dimension and '{lacking[0]}' has none: "
                "give it to all, or to none"
            )
        added = self.batched and not full
        return {name: self._shaped(name, array, added) for name, array in arrays.items()}, added

    def typed(self, name: str, array: Array) -> Array:
        """Return an output that came as JSON, of dtype object, with its datatype and shape."""
        spec = self.outputs.get(name)
        if spec is None or array.dtype != object or isinstance(array.flat[0] if array.size else b"", bytes):
            return array
        typed = to_array(name, array.tolist(), spec.datatype)
        if typed.size == 1 and all(dim in (1, -1) for dim in spec.shape):
            return typed.reshape((1,) * len(spec.shape))
        return typed.reshape(spec.shape) if spec.shape.count(-1) == 1 else typed

    def _check_names(self, values: Mapping[str, Any]) -> None:
        for name in values:
            if name not in self.inputs:
                near = get_close_matches(name, self.inputs, 1)
                hint = f", did you mean '{near[0]}'?" if near else "."
                raise InputError(f"the model has no input '{name}'{hint} It takes {self._listed()}")
        for name, spec in self.inputs.items():
            if name not in values and not spec.optional:
                raise InputError(f"input '{name}' is missing. The model takes {self._listed()}")

    def _listed(self) -> str:
        return ", ".join(map(str, self.inputs.values()))

    def _lacks_batch(self, name: str, array: Array) -> bool:
        return self.batched and array.ndim > 0 and array.ndim == len(self.inputs[name].shape) - 1

    def _shaped(self, name: str, array: Array, added: bool) -> Array:
        spec = self.inputs[name]
        if array.ndim == 0 and all(dim in (1, -1) for dim in spec.shape):
            return array.reshape((1,) * len(spec.shape))
        shaped = array[None] if added else array
        fits = len(spec.shape) == shaped.ndim and all(
            want in (-1, size) for want, size in zip(spec.shape, shaped.shape, strict=True)
        )
        if not fits:
            raise InputError(f"input {spec} cannot take an array of shape {list(array.shape)}")
        return shaped


def by_name(inputs: Mapping[str, Any] | None, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a call by the names of their inputs.

    Raises:
        InputError: a value was given without a name.
    """
    if inputs is None:
        return dict(named)
    if not isinstance(inputs, Mapping):
        raise InputError(
            "values are given by the names of the model's inputs, model(NAME=...) or model({'NAME': ...}), "
            f"not {type(inputs).__name__} alone; model.signature() has the names"
        )
    return {**inputs, **named}


def read_signature(metadata: Mapping[str, Any], config: Mapping[str, Any]) -> Signature:
    """Return the signature that the model's metadata and configuration, as the v2 JSON, describe."""
    optional = {entry["name"] for entry in config.get("input", ()) if entry.get("optional")}
    inputs, outputs = (
        {
            entry["name"]: TensorSpec(
                entry["name"],
                entry["datatype"],
                tuple(int(dim) for dim in entry["shape"]),
                side == "inputs" and entry["name"] in optional,
            )
            for entry in metadata[side]
        }
        for side in ("inputs", "outputs")
    )
    policy = config.get("model_transaction_policy") or {}
    return Signature(inputs, outputs, int(config.get("max_batch_size", 0)) > 0, bool(policy.get("decoupled")))
