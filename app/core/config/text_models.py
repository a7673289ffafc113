"""Which models answer requests for text, and how: recognised by their configuration alone.

The parameter `openai` of a configuration, a JSON object of `TextSettings`, says what its tensors do not; a
mistake in it fails the load. No I/O.
"""

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

import msgspec
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import TensorSpec, input_specs, output_specs
from app.core.errors import InferError, invalid_arg

PARAMETER: Final = "openai"
_MAX_SETTINGS_BYTES: Final = 64 << 10

Task = Literal["chat", "completions", "embeddings", "rerank"]
Format = Literal["vllm", "trtllm", "text", "vector", "pair"]

MESSAGES: Final = "messages"
"""The input of a model that renders chats itself: a JSON object with `messages`, `tools` and `arguments`."""
TOKEN_IDS: Final = "token_ids"
"""The input of a model of vectors that takes the tokens of a text instead of the text."""
STREAM: Final = ("stream", "STREAM")
"""The input that says whether a text is wanted piece by piece."""
_VLLM: Final = frozenset({"text_input", "stream", "sampling_parameters"})
_TRTLLM: Final = frozenset({"text_input", "max_tokens", "stop_words"})
_PAIR: Final = ("query", "document")
_FLOATS: Final = frozenset({"FP16", "FP32", "FP64", "BF16"})
_TASKS: Final[dict[Format, tuple[Task, ...]]] = {
    "vllm": ("chat", "completions"),
    "trtllm": ("chat", "completions"),
    "text": ("chat", "completions"),
    "vector": ("embeddings",),
    "pair": ("rerank",),
}


class TextSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The parameter `openai` of a model.

    Attributes:
        tasks: what it is for; by default what its format allows.
        format: how its tensors are meant; by default recognised.
        listed: whether lists of models have it.
        aliases: other names of it.
        chat_template: a file in the version's directory, a template of Jinja.
        template_kwargs: names that a request may give to the template.
        strip_bos: whether a rendered prompt loses the token that begins a text, because the model's tokenizer
            adds it; by default where the server renders.
        tool_parser: the form of calls in its texts: llama3, mistral or hermes.
        default_max_tokens: tokens of a text where the request has no limit.
        max_tokens: the most that a request may ask for.
        max_model_len: the most tokens of a prompt and its text together.
        dimensions: whether embeddings may be shortened, and are normalised again.
        query_prefix, document_prefix: what precedes texts, as for e5.
        rerank: "cosine" has a model of embeddings compare them.
        activation: what makes scores of the outputs of a model of pairs.
    """

    tasks: tuple[Task, ...] = ()
    format: Format | None = None
    listed: bool = True
    aliases: tuple[str, ...] = ()
    chat_template: str = ""
    template_kwargs: tuple[str, ...] = ()
    strip_bos: bool | None = None
    tool_parser: Literal["", "llama3", "mistral", "hermes"] = ""
    default_max_tokens: int = 0
    max_tokens: int = 0
    max_model_len: int = 0
    dimensions: bool = False
    query_prefix: str = ""
    document_prefix: str = ""
    rerank: Literal["", "cosine"] = ""
    activation: Literal["sigmoid", "none"] = "sigmoid"


class TextModel(NamedTuple):
    """A model that answers requests for text.

    Attributes:
        format: how its tensors are meant.
        tasks: what it is for.
        text: its input of text; of a model of pairs, that of queries.
        output: its output of text, vectors or scores.
        renders: it has an input `messages`.
        embeds: a model of format vllm that has an input `embedding_request`.
        settings: its parameter `openai`.
    """

    format: Format
    tasks: tuple[Task, ...]
    text: str
    output: str
    renders: bool
    embeds: bool
    settings: TextSettings


def text_settings(config: mc.ModelConfig) -> TextSettings | None:
    """Read the parameter `openai`; None without it.

    Raises:
        InferError: INVALID_ARG that names the mistake.
    """
    if PARAMETER not in config.parameters:
        return None
    text = config.parameters[PARAMETER].string_value
    if len(text) > _MAX_SETTINGS_BYTES:
        raise _wrong(config, f"must have at most {_MAX_SETTINGS_BYTES} bytes, got {len(text)}")
    try:
        settings = msgspec.json.decode(text, type=TextSettings)
    except msgspec.DecodeError as error:
        raise _wrong(config, f"must be a JSON object of settings: {error}") from None
    for name in ("default_max_tokens", "max_tokens", "max_model_len"):
        if getattr(settings, name) < 0:
            raise _wrong(config, f"has a negative '{name}'")
    template = settings.chat_template
    if template.startswith("/") or ".." in template.split("/"):
        raise _wrong(config, f"names the chat template '{template}', which is not in the version's directory")
    return settings


def text_model(config: mc.ModelConfig, preferred: Format | None = None) -> TextModel | None:
    """Recognise a model by a configuration that is complete; None for one that has nothing to do with text.

    `preferred` is the format of a model that says none.

    Raises:
        InferError: INVALID_ARG for a parameter `openai` that is wrong, or does not fit the tensors.
    """
    given = text_settings(config)
    settings = given or TextSettings()
    tensors = _Tensors(config)
    kind = settings.format or preferred or tensors.format()
    if kind is None:
        if given is not None:
            raise _wrong(config, "is given, and neither its tensors nor a 'format' say how they are meant")
        return None
    text, output = tensors.text(kind), tensors.output(kind)
    if not text or not output:
        raise _wrong(config, f"says format '{kind}', which the model's inputs and outputs do not fit")
    embeds = kind == "vllm" and "embedding_request" in tensors.inputs
    possible = _possible(kind, settings, embeds, tensors.renders, chats_only=text == MESSAGES)
    found = TextModel(kind, settings.tasks or possible, text, output, tensors.renders, embeds, settings)
    for task in settings.tasks:
        if task not in (*possible, "chat" if kind == "text" else ""):
            raise _wrong(config, f"says task '{task}', and format '{kind}' is for {', '.join(possible)}")
    return found


def _possible(
    kind: Format, settings: TextSettings, embeds: bool, renders: bool, chats_only: bool
) -> tuple[Task, ...]:
    tasks = _TASKS[kind]
    if chats_only:
        return ("chat",)
    if kind == "text" and not (settings.chat_template or renders):
        tasks = ("completions",)
    if embeds:
        tasks = (*tasks, "embeddings")
    if "embeddings" in tasks and settings.rerank:
        tasks = (*tasks, "rerank")
    return tasks


class _Tensors:
    """The tensors of a configuration, as recognition looks at them."""

    def __init__(self, config: mc.ModelConfig) -> None:
        self.inputs = {spec.name: spec for spec in input_specs(config)}
        self.outputs = {spec.name: spec for spec in output_specs(config)}
        self.renders = MESSAGES in self.inputs and self.inputs[MESSAGES].datatype == "BYTES"

    def format(self) -> Format | None:
        """Return what the names and types of the tensors say."""
        names = self.inputs.keys()
        if "text_output" in self.outputs and names >= _VLLM:
            return "vllm"
        if "text_output" in self.outputs and names >= _TRTLLM:
            return "trtllm"
        if self.text("pair") and self.output("pair"):
            return "pair"
        return next((kind for kind in _INFERRED if self.text(kind) and self.output(kind)), None)

    def text(self, kind: Format) -> str:
        """Return the name of the input of text that a format has; "" where there is none."""
        if kind in ("vllm", "trtllm"):
            return "text_input" if "text_input" in self.inputs else ""
        if kind == "pair":
            fits = all(self._is_text(self.inputs.get(name)) for name in _PAIR)
            return _PAIR[0] if fits and not self._required(_PAIR) else ""
        either = kind == "vector" and TOKEN_IDS in self.inputs
        texts = [name for name, spec in self.inputs.items() if self._is_text(spec)]
        texts = [name for name in texts if either or not self.inputs[name].optional]
        if len(texts) > 1 and self.renders:
            texts.remove(MESSAGES)
        known = (MESSAGES, *STREAM)
        return texts[0] if len(texts) == 1 and not self._required((texts[0], *known)) else ""

    def output(self, kind: Format) -> str:
        """Return the name of the output that a format has; "" where there is none."""
        if kind in ("vllm", "trtllm"):
            return "text_output" if "text_output" in self.outputs else ""
        if kind == "text":
            texts = [name for name, spec in self.outputs.items() if self._is_text(spec)]
            named = [name for name in texts if name == "text_output"] or texts
            return named[0] if len(named) == 1 else ""
        floats = [name for name, spec in self.outputs.items() if spec.datatype in _FLOATS]
        return floats[0] if len(floats) == 1 else ""

    def _required(self, known: Iterable[str]) -> list[str]:
        """Return the inputs beside these that a request must have."""
        return [name for name, spec in self.inputs.items() if not spec.optional and name not in known]

    @staticmethod
    def _is_text(spec: TensorSpec | None) -> bool:
        """Return whether a tensor has one text, for each row of a batch."""
        return spec is not None and spec.datatype == "BYTES" and all(dim in (1, -1) for dim in spec.dims)


_INFERRED: Final[tuple[Format, ...]] = ("text", "vector")


def _wrong(config: mc.ModelConfig, what: str) -> InferError:
    return invalid_arg(f"model '{config.name}': parameter '{PARAMETER}' {what}")
