"""Adapters of LoRA, loaded by peft; each text of a step may have another."""

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from app.core.files.paths import path_inside

FILE: Final = "multi_lora.json"
_WEIGHTS: Final = "adapter_model.safetensors"
_BASE: Final = "__base__"
"""What peft calls the model without an adapter."""


def read_adapters(directory: str) -> dict[str, str]:
    """Return the folders of a version's adapters by name; {} without a multi_lora.json.

    Raises:
        ValueError: with the reason.
    """
    path = os.path.join(directory, FILE)
    if not os.path.isfile(path):
        return {}
    with open(path, "rb") as file:
        given = json.load(file)
    if (
        not isinstance(given, dict)
        or not all(given)
        or not all(isinstance(each, str) for each in given.values())
    ):
        raise ValueError(f"'{path}' must be a JSON object of names and folders")
    root, version = os.path.split(directory)
    found = {}
    for name, folder in given.items():
        if path_inside(root, folder, version) is None:
            raise ValueError(f"adapter '{name}' of '{path}' leads out of '{root}'")
        found[name] = os.path.join(directory, folder)
        if not os.path.isfile(os.path.join(found[name], _WEIGHTS)):
            raise ValueError(f"adapter '{name}' of '{path}' has no {_WEIGHTS} in '{found[name]}'")
    return found


def add_adapters(model: Any, adapters: Mapping[str, str], whose: Callable[[int], list[str]]) -> None:
    """Put adapters into a model of transformers, beside its own weights.

    Args:
        model: which is changed.
        adapters: their folders by name.
        whose: returns the adapter of each of so many tokens that a layer computes, "" for none.

    Raises:
        ValueError: one is not of LoRA, or of a kind that texts of other adapters cannot be beside.
    """
    from peft import LoraConfig, PeftConfig, PeftModel
    from peft.tuners.lora import LoraLayer

    wrapped = None
    for name, folder in adapters.items():
        config = PeftConfig.from_pretrained(folder, local_files_only=True)
        if (
            not isinstance(config, LoraConfig)
            or config.use_dora
            or config.modules_to_save
            or config.bias != "none"
        ):
            raise ValueError(f"adapter '{name}' is not of LoRA alone, or has DoRA, biases or whole modules")
        if wrapped is None:
            wrapped = PeftModel.from_pretrained(model, folder, name, config=config, local_files_only=True)
        else:
            wrapped.load_adapter(folder, name, local_files_only=True)
    hooks = _Hooks(whose)
    for module in model.modules():
        if isinstance(module, LoraLayer):
            module.register_forward_pre_hook(hooks.before, with_kwargs=True)
            module.register_forward_hook(hooks.after)
    model.eval()


class _Hooks:
    """Gives peft the tokens of a step, [1, tokens, ...], as samples of a batch, each with its adapter."""

    def __init__(self, whose: Callable[[int], list[str]]) -> None:
        self._whose = whose

    def before(self, module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        values, *others = arguments
        if values.dim() != (3 if values.is_floating_point() else 2):
            raise ValueError(f"{type(module).__name__} computes tokens in a form that adapters do not know")
        names = [name or _BASE for name in self._whose(values.shape[1])]
        return (values[0], *others), {**options, "adapter_names": names}

    def after(self, module: Any, arguments: tuple[Any, ...], result: Any) -> Any:
        return result[None]
