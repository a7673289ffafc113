"""Settings of the front for OpenAI's clients; names of flags are those of Triton's front."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated as A
from typing import Final

import msgspec

from app.core.chat_templates import ChatTemplate, read_template, read_tokenizer
from app.core.config.text_models import Format
from app.protocol.restrictions import Restriction, parse_restrictions
from app.settings.flag.flags import NEREID, Flag, Section
from app.settings.flag.parsers import entries_of_file
from app.settings.fronts import HttpSettings

NO_PORT: Final = -1
GROUPS: Final = ("inference", "model-repository", "metrics", "health")
"""Groups of endpoints that `--openai-restricted-api` names."""
_OPTION: Final = "openai-restricted-api"
FORMATS: Final[Mapping[str, Format]] = {"vllm": "vllm", "tensorrtllm": "trtllm"}
"""Formats by what `--backend` calls them."""


class TemplateFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Flags that the server's chat template is made of."""

    file: A[
        str,
        Flag(
            "chat_template", "File of the chat template for text models that have none of their own.", NEREID
        ),
    ] = ""
    tokenizer: A[
        str,
        Flag(
            "tokenizer",
            "Folder of a tokenizer, whose chat template and special tokens are for models without.",
            NEREID,
        ),
    ] = ""


class RestrictionFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Flags that restrictions are made of; a value may be three words, as for Triton's front."""

    entries: A[
        tuple[str, ...],
        Flag(
            "openai_restricted_api",
            "APIS:KEY=VALUE, or APIS KEY VALUE, endpoints that require a header; may be repeated.",
            NEREID,
            words=True,
        ),
    ] = ()
    files: A[
        tuple[str, ...],
        Flag(
            "openai_restricted_api_file",
            "File of such lines, whose keys no process list shows; may be repeated.",
            NEREID,
        ),
    ] = ()


class OpenAISettings(msgspec.Struct, frozen=True, kw_only=True):
    """The front for OpenAI's clients: on the port of HTTP, on a port of its own, or both.

    Attributes:
        restrictions: the headers that groups of endpoints require.
        default_max_tokens: of a text whose request has no limit; 0 for OpenAI's defaults.
        template: of chats, for models without one.
        tool_parser: of models that say nothing.
        max_tool_bytes: of a text in which calls are looked for.
        lora_separator: between the names of a model and of an adapter; "" where names have none.
        backend: the format of text models that say nothing; "" to recognise it.
    """

    same_port: A[
        bool,
        Flag("allow_openai", "Serve OpenAI's API too, for text models, on the port of HTTP.", NEREID),
    ] = False
    port: A[
        int,
        Flag(
            "openai_port",
            "Port of its own for OpenAI's API, at the address of HTTP, as 9000 of Triton's front; 0 for a "
            "free one, -1 for none.",
            NEREID,
            low=NO_PORT,
            high=65535,
        ),
    ] = NO_PORT
    restrictions: A[
        Mapping[str, Restriction],
        Section(NEREID, RestrictionFlags, lambda flags: _restrictions(flags)),
    ] = {}
    default_max_tokens: A[
        int,
        Flag(
            "default_max_tokens",
            "Maximum tokens of a text whose request has no limit; 0 for 16 in completions and the model's "
            "context in chats.",
            NEREID,
            low=0,
        ),
    ] = 0
    template: A[ChatTemplate, Section(NEREID, TemplateFlags, lambda flags: _template(flags))] = ChatTemplate()
    tool_parser: A[
        str,
        Flag(
            "tool_call_parser",
            "Form of tool calls in the texts of models that say nothing.",
            NEREID,
            choices=("", "llama3", "mistral", "hermes"),
        ),
    ] = ""
    max_tool_bytes: A[
        int,
        Flag(
            "max_tool_call_parse_bytes",
            "Maximum bytes of a text in which tool calls are looked for.",
            NEREID,
            low=1,
        ),
    ] = 128 << 10
    lora_separator: A[
        str,
        Flag(
            "lora_separator",
            "Text between the names of a model and of a LoRA adapter in a request's model.",
            NEREID,
        ),
    ] = ""
    backend: A[
        str,
        Flag(
            "backend",
            "Format of text models whose parameter 'openai' says none; by default recognised.",
            NEREID,
            choices=("", *FORMATS),
        ),
    ] = ""

    @property
    def enabled(self) -> bool:
        """Whether it is served anywhere."""
        return self.same_port or self.port != NO_PORT

    def listener(self, http: HttpSettings) -> HttpSettings:
        """Return the settings of the listener of its own."""
        return msgspec.structs.replace(http, enabled=self.port != NO_PORT, port=max(self.port, 0))


def _restrictions(flags: RestrictionFlags) -> Mapping[str, Restriction]:
    lines = (line for path in flags.files for line in entries_of_file(path, f"--{_OPTION}-file"))
    return parse_restrictions((*flags.entries, *lines), _OPTION, "api", known=GROUPS)


def _template(flags: TemplateFlags) -> ChatTemplate:
    """Read the chat template of the flags.

    Raises:
        ValueError: a file cannot be read, or is none.
    """
    found = ChatTemplate()
    if flags.tokenizer:
        found = _of("--tokenizer", read_tokenizer, flags.tokenizer)
    if flags.file:
        given = _of("--chat-template", read_template, flags.file)
        found = ChatTemplate(given.source, {**found.tokens, **given.tokens})
    return found


def _of(flag: str, read: Callable[[Path], ChatTemplate], path: str) -> ChatTemplate:
    try:
        return read(Path(path))
    except ValueError as error:
        raise ValueError(f"{flag}: {error}") from None
