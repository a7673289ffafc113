"""What files of a transformers model say without being loaded: whether it generates text, and what they lack.

Imports no framework: `nereid check` reads them too.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, Final, NamedTuple

CONFIG: Final = "config.json"
_INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
_ENDING: Final = ".safetensors"
_GENERATES: Final = re.compile(
    r"(ForCausalLM|LMHeadModel|WithLMHead|ForConditionalGeneration|GenerationDecoder)$"
)
_CAUSAL: Final = "ForCausalLM"
_LAYER: Final = re.compile(r"\.(?:layers?|blocks?|h)\.(\d+)\.")
_LAYER_COUNTS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_MAX_HEADER: Final = 100_000_000
"""That of the safetensors library."""
_ITEMSIZES: Final = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}
_SHOWN: Final = 5


class Architecture(NamedTuple):
    """What config.json says of a model.

    Attributes:
        names: its classes; () where the file does not say.
        layers: how many there are; 0 where the file does not say.
        generates: whether it can continue a text.
    """

    names: tuple[str, ...]
    layers: int
    generates: bool


def check_generates(folder: str) -> Architecture:
    """Return what config.json of a folder says of a model that generates text.

    Raises:
        ValueError: it says that it does not, or is missing.
    """
    architecture = read_architecture(folder)
    if not architecture.generates:
        raise ValueError(
            f"'{', '.join(architecture.names)}' of '{os.path.join(folder, CONFIG)}' does not generate text."
            " Serve a classifier or an encoder by the backend 'onnxruntime' (optimum-cli export onnx --model"
            " FOLDER .), or load it in a Python model"
        )
    return architecture


def check_weights(folder: str) -> None:
    """Check that a folder has a model that generates text, with whole files.

    Raises:
        ValueError: it has not, with the reason.
    """
    architecture = check_generates(folder)
    tensors = _tensors(folder)
    found = {int(match[1]) for name in tensors if (match := _LAYER.search(name))}
    if found and (missing := sorted({*range(architecture.layers)} - found)):
        raise ValueError(
            f"the weights in '{folder}' have no tensors of layer {listed(missing)}: {CONFIG} says that there"
            f" are {architecture.layers}"
        )


def read_architecture(folder: str) -> Architecture:
    """Read config.json of a folder.

    Raises:
        ValueError: it is missing, or no JSON object.
    """
    config = _read_object(os.path.join(folder, CONFIG))
    names = config.get("architectures")
    names = tuple(map(str, names)) if isinstance(names, list) else ()
    text = config.get("text_config")
    counts = [(text if isinstance(text, dict) else config).get(key) for key in _LAYER_COUNTS]
    layers = next((count for count in counts if type(count) is int and count > 0), 0)
    pattern = re.compile(f"{_CAUSAL}$") if config.get("is_encoder_decoder") is True else _GENERATES
    return Architecture(names, layers, not names or any(map(pattern.search, names)))


def listed(values: Iterable[object]) -> str:
    """Return the first few of some values, and how many more there are."""
    texts = [str(value) for value in values]
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return f"{', '.join(texts[:_SHOWN])}{more}"


def _tensors(folder: str) -> set[str]:
    """Return the names of all tensors, of the files that an index names where there is one."""
    if not os.path.isfile(os.path.join(folder, _INDEX)):
        files = [name for name in os.listdir(folder) if name.endswith(_ENDING)]
        read = [_SINGLE] if _SINGLE in files else files
        return {tensor for file in read for tensor in _header(os.path.join(folder, file))}
    places = _read_object(os.path.join(folder, _INDEX)).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise ValueError(f"'{os.path.join(folder, _INDEX)}' has no 'weight_map'")
    files = sorted(set(places.values()))
    if absent := [file for file in files if not os.path.isfile(os.path.join(folder, file))]:
        raise ValueError(f"'{folder}' lacks {listed(absent)}, which {_INDEX} names")
    held = {file: _header(os.path.join(folder, file)) for file in files}
    if lost := sorted(name for name, file in places.items() if name not in held[file]):
        raise ValueError(f"the weights in '{folder}' lack {listed(lost)}, which {_INDEX} names")
    return set(places)


def _header(path: str) -> set[str]:
    """Return the names of the tensors of a file, whose size must be that of its header.

    The format: 8 bytes, the length of the header; the header, a JSON object; the tensors' bytes.
    """
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or not 2 <= length <= min(_MAX_HEADER, size - 8):
            raise ValueError(f"'{path}' is damaged or truncated: it has no header of safetensors")
        header = _parse_object(path, file.read(length))
    header.pop("__metadata__", None)
    end = max((_end(path, name, tensor) for name, tensor in header.items()), default=0)
    if size != 8 + length + end:
        raise ValueError(f"'{path}' is damaged or truncated: it has {size} bytes for {8 + length + end}")
    return set(header)


def _end(path: str, name: str, tensor: Any) -> int:
    """Return where the bytes of a tensor end."""
    try:
        begin, end = tensor["data_offsets"]
        itemsize = _ITEMSIZES.get(tensor["dtype"])
        fits = 0 <= begin <= end and (itemsize is None or end - begin == prod(tensor["shape"]) * itemsize)
    except (KeyError, TypeError, ValueError):
        fits = False
    if not fits:
        raise ValueError(f"'{path}' is damaged: what it says of tensor '{name}' contradicts itself")
    return int(end)


def _read_object(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return _parse_object(path, file.read())
    except FileNotFoundError:
        raise ValueError(f"'{path}' is missing") from None


def _parse_object(path: str, content: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, Mapping):
        raise ValueError(f"'{path}' is damaged: it has no JSON object")
    return dict(parsed)
