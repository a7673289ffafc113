"""What ingresses know of a text model, and files of chat templates, of Jinja, with their special tokens."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

MAX_TEMPLATE_BYTES: Final = 256 << 10
_MAX_CONFIG_BYTES: Final = 16 << 20
_CONFIG: Final = "tokenizer_config.json"
_TOKENS: Final = ("bos_token", "eos_token", "pad_token", "unk_token")


class ChatTemplate(msgspec.Struct, frozen=True):
    """A chat template; `source` is "" for none. `tokens` are special tokens by their names in it."""

    source: str = ""
    tokens: dict[str, str] = {}


class TextFacts(msgspec.Struct, frozen=True):
    """Facts of a text model that ingresses know beside its configuration.

    Attributes:
        template: of chats, where it does not render them itself.
        adapters: of LoRA, by name; None where the files do not tell, and any may be asked for.
        max_model_len: tokens of a prompt and its text together; 0 if unknown.
        keeps_prefixes: each replica keeps the beginnings of prompts, for others that begin alike.
    """

    template: ChatTemplate = ChatTemplate()
    adapters: tuple[str, ...] | None = ()
    max_model_len: int = 0
    keeps_prefixes: bool = False


def read_template(path: Path) -> ChatTemplate:
    """Read the file of a template, with the tokens of a tokenizer_config.json beside it.

    Raises:
        ValueError: it cannot be read, with the reason.
    """
    return ChatTemplate(_read(path, MAX_TEMPLATE_BYTES), _tokens(_config(path.parent)))


def read_tokenizer(folder: Path) -> ChatTemplate:
    """Read the template of a tokenizer's folder.

    Raises:
        ValueError: it has none, or it cannot be read.
    """
    config = _config(folder)
    file = folder / "chat_template.jinja"
    source = _read(file, MAX_TEMPLATE_BYTES) if file.is_file() else config.get("chat_template")
    if not isinstance(source, str) or not source:
        raise ValueError(f"'{folder}' has no chat template")
    return ChatTemplate(source, _tokens(config))


def _config(folder: Path) -> Mapping[str, object]:
    path = folder / _CONFIG
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(_read(path, _MAX_CONFIG_BYTES), type=dict[str, object])
    except msgspec.DecodeError as error:
        raise ValueError(f"'{path}': {error}") from None


def _tokens(config: Mapping[str, object]) -> dict[str, str]:
    found = {}
    for name in _TOKENS:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found


def _read(path: Path, limit: int) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
        if len(content) > limit:
            raise ValueError(f"it has more than {limit} bytes")
        return content.decode()
    except (OSError, ValueError) as error:
        raise ValueError(f"'{path}': {getattr(error, 'strerror', None) or error}") from None
