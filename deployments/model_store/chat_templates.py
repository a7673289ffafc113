"""Reads the chat template that a model's parameter `openai` names."""

from pathlib import Path

from tritonclient.grpc import model_config_pb2 as mc

from app.core.chat_templates import ChatTemplate, read_template, read_tokenizer
from app.core.config.text_models import text_settings
from app.core.errors import invalid_arg
from app.core.files.paths import path_inside


def read_chat_template(directory: Path, version: int, config: mc.ModelConfig) -> ChatTemplate:
    """Read the chat template of a version: a file, or a tokenizer's folder, of its directory.

    Raises:
        InferError: INVALID_ARG, it is not there, or is none.
    """
    settings = text_settings(config)
    if settings is None or not settings.chat_template:
        return ChatTemplate()
    path = path_inside(directory, settings.chat_template, str(version))
    if path is None:
        raise invalid_arg(f"model '{config.name}': the chat template leads out of '{directory}'")
    try:
        return read_tokenizer(path) if path.is_dir() else read_template(path)
    except ValueError as error:
        raise invalid_arg(f"model '{config.name}': the chat template cannot be used: {error}") from None
