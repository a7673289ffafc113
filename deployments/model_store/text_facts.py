"""Reads what the files of a text model tell the ingresses: its chat template, its adapters, its context."""

import json
from pathlib import Path
from typing import Any, Final

from tritonclient.grpc import model_config_pb2 as mc

from app.core.chat_templates import ChatTemplate, TextFacts, read_template, read_tokenizer
from app.core.config.text_models import TextSettings, text_model
from app.core.errors import invalid_arg
from app.core.files.paths import path_inside

_ADAPTERS: Final = "multi_lora.json"
_ENGINE: Final = "model.json"
_MAX_BYTES: Final = 1 << 20
_MAX_ADAPTERS: Final = 4096


def read_text_facts(directory: Path, version: int, config: mc.ModelConfig) -> TextFacts:
    """Read the files of a version, whose backend reads those of its engine too, and says what is wrong there.

    Raises:
        InferError: INVALID_ARG, the chat template is not there, or is none.
    """
    text = text_model(config)
    if text is None:
        return TextFacts()
    template = _template(directory, version, config.name, text.settings)
    if text.format != "vllm":
        return TextFacts(template)
    folder = directory / str(version)
    engine = _json(folder / _ENGINE)
    length = (engine or {}).get("max_model_len")
    length = length if type(length) is int and length > 0 else 0
    adapters = None if engine is None else _adapters(folder, config.backend, engine)
    return TextFacts(template, adapters, length, _keeps_prefixes(engine))


def _keeps_prefixes(engine: dict[str, Any] | None) -> bool:
    """Return whether an engine has a cache of beginnings, as `llm` and vLLM have if nothing else is said."""
    if engine is None or engine.get("prefix_cache_bytes") == 0:
        return False
    return str(engine.get("enable_prefix_caching", True)).lower() == "true"


def _adapters(folder: Path, backend: str, engine: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of adapters, which vLLM's backend has by `enable_lora` alone."""
    if backend == "vllm" and str(engine.get("enable_lora")).lower() != "true":
        return ()
    return tuple([name for name in _json(folder / _ADAPTERS) or () if name][:_MAX_ADAPTERS])


def _template(directory: Path, version: int, name: str, settings: TextSettings) -> ChatTemplate:
    """Read the chat template that the settings name: a file, or a tokenizer's folder, of the version."""
    if not settings.chat_template:
        return ChatTemplate()
    path = path_inside(directory, settings.chat_template, str(version))
    if path is None:
        raise invalid_arg(f"model '{name}': the chat template leads out of '{directory}'")
    try:
        return read_tokenizer(path) if path.is_dir() else read_template(path)
    except ValueError as error:
        raise invalid_arg(f"model '{name}': the chat template cannot be used: {error}") from None


def _json(path: Path) -> dict[str, Any] | None:
    """Return the object of a file; None where there is none."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
