"""The engine arguments of a model, and the folder of its weights.

Imports no framework.
"""

import json
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from app.core.files.paths import path_inside
from backends.openvino.document import check_xml

_DTYPES: Final = ("auto", "float32", "float16", "bfloat16")
_ENGINES: Final = ("transformers", "openvino")
_NETWORK: Final = ("openvino_model.xml", "openvino_model.bin")


@dataclass(frozen=True)
class EngineArguments:
    """The contents of model.json, with vLLM's names.

    Attributes:
        model: a folder of the version's directory with weights and tokenizer, as `save_pretrained` writes it.
        engine: what computes: "transformers", or "openvino", on CPUs.
        dtype: of the weights; "auto" as the file has them. What "openvino" computes in, float32 for "auto".
        max_model_len: the most tokens of a prompt and its text together; None for the model's own limit.
        max_num_seqs: how many texts are continued together.
        max_num_batched_tokens: new prompts join a step until they have so many tokens together.
        max_num_waiting: how many requests wait to be continued.
        prefix_cache_bytes: of keys and values of beginnings that prompts share; 0 for none.
        quantization: "int8" has linear layers of 8 bits, which compute in bfloat16 on the CPU; None for none.
    """

    model: str = "."
    engine: str = "transformers"
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 2048
    max_num_waiting: int = 256
    prefix_cache_bytes: int = 512 << 20
    quantization: str | None = None


def read_arguments(directory: str) -> EngineArguments:
    """Read model.json of a version's directory.

    Raises:
        ValueError: with the reason.
    """
    path = os.path.join(directory, "model.json")
    if not os.path.isfile(path):
        raise ValueError(f"'model.json' containing engine args must be provided in '{directory}'")
    with open(path, "rb") as file:
        given = json.load(file)
    if not isinstance(given, dict):
        raise ValueError(f"'{path}' must be a JSON object")
    known = {field.name: field for field in fields(EngineArguments)}
    unknown = sorted(given.keys() - known.keys())
    if unknown:
        raise ValueError(f"unknown engine argument '{unknown[0]}' in '{path}', known are: {', '.join(known)}")
    arguments = EngineArguments(**given)
    if not isinstance(arguments.model, str):
        raise ValueError(f"model must be a text, got {arguments.model!r}")
    for name in known.keys() - {"model", "engine", "dtype", "quantization"}:
        value = getattr(arguments, name)
        least = 0 if name == "prefix_cache_bytes" else 1
        if value is not None and (type(value) is not int or value < least):
            kind = "a positive integer" if least else "0 or a positive integer"
            raise ValueError(f"{name} must be {kind}, got {value!r}")
    if arguments.engine not in _ENGINES:
        raise ValueError(f"engine must be one of {', '.join(_ENGINES)}, got {arguments.engine!r}")
    if arguments.dtype not in _DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(_DTYPES)}, got {arguments.dtype!r}")
    if arguments.quantization not in (None, "int8"):
        raise ValueError(f"quantization must be int8, got {arguments.quantization!r}")
    if arguments.quantization and arguments.engine != "transformers":
        raise ValueError(
            "quantization is of engine transformers: engine openvino has the weights as their file does"
        )
    if arguments.quantization and arguments.dtype not in ("auto", "bfloat16"):
        raise ValueError(f"quantization int8 computes in bfloat16, dtype is {arguments.dtype!r}")
    return arguments


def model_folder(directory: str, name: str, engine: str = "transformers") -> str:
    """Return the folder of weights and tokenizer.

    Raises:
        ValueError: it is not there, or leads out of the model's directory, or has no weights of the engine.
    """
    folder = os.path.join(directory, name)
    root, version = os.path.split(directory)
    if path_inside(root, name, version) is None:
        raise ValueError(f"'{folder}' leads out of '{root}'")
    if not os.path.isdir(folder):
        raise ValueError(
            f"model '{name}' is no folder in '{directory}'; nothing is downloaded: put a model of the Hugging"
            f" Face Hub there, by 'hf download {name} --local-dir {directory}/weights' for instance"
        )
    if engine == "openvino":
        _check_network(folder)
        return folder
    names = os.listdir(folder)
    if not any(each.endswith(".safetensors") for each in names):
        raise ValueError(
            f"no *.safetensors in '{folder}': weights of other formats are pickles, and not read"
        )
    return folder


def _check_network(folder: str) -> None:
    for name in _NETWORK:
        path = os.path.join(folder, name)
        if not os.path.isfile(path) or not os.path.getsize(path):
            raise ValueError(
                f"no '{path}', or it is empty: engine openvino serves what 'optimum-cli export"
                " openvino' writes"
            )
    check_xml(Path(folder, _NETWORK[0]))
