"""`pb_utils.ModelConfig`: the changes that `auto_complete_config` may make, with Triton's texts."""

import json
from collections.abc import Mapping
from typing import Any, Final

_INPUT_PROPERTIES: Final = ("name", "data_type", "dims", "optional")
_OUTPUT_PROPERTIES: Final = ("name", "data_type", "dims")

Properties = dict[str, Any]


class ModelConfig:
    """A model configuration that is being completed.

    Methods that change it raise ValueError for a contradiction of the configuration file.

    Attributes:
        backend_config: the settings of `--backend-config` for the model's backend; Triton has no such thing.
    """

    def __init__(self, model_config: str, backend_config: Mapping[str, str] | None = None) -> None:
        self._model_config: Properties = json.loads(model_config)
        self.backend_config = dict(backend_config or {})

    def as_dict(self) -> Properties:
        """Return the configuration."""
        return self._model_config

    @property
    def _name(self) -> str:
        return str(self._model_config["name"])

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set the largest batch size, not below that of the configuration file."""
        specified = self._model_config["max_batch_size"]
        if specified > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {specified}, but in auto-complete-config function"
                f" for model '{self._name}' specified max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Choose the dynamic batcher, if no scheduler is chosen."""
        for scheduler in ("sequence_batching", "ensemble_scheduling"):
            if scheduler in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{scheduler}', but auto-complete-config"
                    f" function for model '{self._name}' tries to set scheduling_choice as"
                    " 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: Properties) -> None:
        """Add an input, or complete the one of that name: name, data_type, dims and optional."""
        self._check_properties(
            "input", input, _INPUT_PROPERTIES, "'name', 'data_type', 'dims' and 'optional'"
        )
        existing = self._complete("input", input)
        if existing is None or "optional" not in input:
            return
        specified = existing.get("optional")
        if specified is not None and specified != input["optional"]:
            raise ValueError(
                f"model '{self._name}', tensor '{input['name']}': the model expects optional"
                f" {input['optional']} but the model configuration specifies optional {specified}"
            )
        existing["optional"] = input["optional"]

    def add_output(self, output: Properties) -> None:
        """Add an output, or complete the one of that name: name, data_type and dims."""
        self._check_properties("output", output, _OUTPUT_PROPERTIES, "'name', 'data_type' and 'dims'")
        self._complete("output", output)

    def set_model_transaction_policy(self, transaction_policy_dict: Properties) -> None:
        """Set `decoupled`, if the configuration file does not contradict."""
        if any(key != "decoupled" for key in transaction_policy_dict):
            raise ValueError(
                "model transaction property in auto-complete-config function for model"
                f" '{self._name}' contains property other than 'decoupled'."
            )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" not in transaction_policy_dict:
            return
        decoupled = transaction_policy_dict["decoupled"]
        if policy.get("decoupled", decoupled) != decoupled:
            raise ValueError(
                "trying to change decoupled property in auto-complete-config for model"
                f" '{self._name}', which is already set to '{policy['decoupled']}'."
            )
        policy["decoupled"] = decoupled

    def _check_properties(
        self, kind: str, tensor: Properties, allowed: tuple[str, ...], allowed_text: str
    ) -> None:
        where = f"in auto-complete-config function for model '{self._name}'"
        if "name" not in tensor:
            raise ValueError(f"{kind} {where} is missing 'name' property.")
        name = tensor["name"]
        if any(key not in allowed for key in tensor):
            raise ValueError(f"{kind} '{name}' {where} contains property other than {allowed_text}.")
        for key in ("data_type", "dims"):
            if key not in tensor:
                raise ValueError(f"{kind} '{name}' {where} is missing '{key}' property.")

    def _complete(self, kind: str, tensor: Properties) -> Properties | None:
        """Complete the tensor of this name and return it; add it and return None if there is none."""
        tensors = self._model_config[kind]
        existing: Properties | None = next((t for t in tensors if t["name"] == tensor["name"]), None)
        if existing is None:
            tensors.append(tensor)
            return None
        if existing["data_type"] not in ("TYPE_INVALID", tensor["data_type"]):
            raise ValueError(
                f"unable to load model '{self._name}', configuration expects datatype"
                f" {existing['data_type']} for {kind} '{tensor['name']}', model provides"
                f" {tensor['data_type']}"
            )
        if existing["dims"] and existing["dims"] != tensor["dims"]:
            raise ValueError(
                f"model '{self._name}', tensor '{tensor['name']}': the model expects dims"
                f" {tensor['dims']} but the model configuration specifies dims {existing['dims']}"
            )
        existing.update(data_type=tensor["data_type"], dims=tensor["dims"])
        return existing
