"""What requests for texts have in common, and their fields. No I/O."""

from typing import Any, Final, NamedTuple

import msgspec

from app.core.config.text_models import STREAM, TextModel
from app.protocol.openai.caller import IGNORED, Caller, read_caller
from app.protocol.openai.errors import invalid, unknown_argument
from app.protocol.openai.fields import Fields
from app.protocol.openai.texts.sampling import Sampling, read_choices, read_sampling
from app.protocol.openai.tool_choice import Tools

_IGNORED: Final = (
    *IGNORED,
    "prompt_cache_retention",
    "prompt_cache_options",
    "verbosity",
    "prediction",
)
_REFUSED: Final = {
    "web_search_options": "",
    "moderation": "",
    "beam_search": "",
    "use_beam_search": "",
}
SCALARS: Final = (str, bool, int, float)


class Defaults(NamedTuple):
    """What holds where a request, and its model, say nothing.

    Attributes:
        max_tokens: of a text; 0 for the API's own default.
        tool_parser: see `TextSettings`.
        max_tool_bytes: bytes of a text in which calls are looked for.
    """

    max_tokens: int = 0
    tool_parser: str = ""
    max_tool_bytes: int = 128 << 10


class TextRequest(msgspec.Struct):
    """A request for texts.

    Attributes:
        prompts: texts to continue; one, "", of a chat that is not rendered yet.
        choices: continuations of each.
        sampling: how.
        stream: whether pieces are sent as they come.
        usage: whether a stream ends with its tokens.
        echo: whether the prompts precede their continuations.
        extra: further fields, which the model or its format knows.
        caller: who asks.
        chat: what a template renders; None for none.
        tools: that the text may call; None for a completion.
        echoed: fields that the answer repeats.
    """

    prompts: list[str]
    choices: int
    sampling: Sampling
    stream: bool
    usage: bool
    echo: bool
    extra: dict[str, Any]
    caller: Caller
    chat: dict[str, Any] | None = None
    tools: Tools | None = None
    echoed: dict[str, Any] = {}


def read_request(
    fields: Fields, text: TextModel, known: frozenset[str], prompts: list[str], default: int | None
) -> TextRequest:
    """Read what all requests for texts have; what is left is the model's, or unknown.

    Args:
        fields: of the request, without those that it alone has.
        text: the model.
        known: its inputs.
        prompts: texts to continue.
        default: tokens of a text where the request has no limit; None for as many as fit.

    Raises:
        OpenAIError: a field is not allowed.
    """
    settings = text.settings
    fields.refuse(_REFUSED)
    fields.drop(_IGNORED)
    stream = fields.flag("stream")
    found = TextRequest(
        prompts,
        read_choices(fields, len(prompts)),
        read_sampling(fields, settings.default_max_tokens or default, settings.max_tokens),
        stream,
        _usage(fields, stream),
        fields.flag("echo"),
        {},
        read_caller(fields),
    )
    found.extra = _extra(fields, text, known)
    return found


def _usage(fields: Fields, stream: bool) -> bool:
    options = fields.object("stream_options")
    if options is None:
        return False
    if not stream:
        raise invalid("`stream_options` can only be used when `stream` is True", "stream_options")
    return options.flag("include_usage")


def _extra(fields: Fields, text: TextModel, known: frozenset[str]) -> dict[str, Any]:
    for name in fields.left():
        if name not in known or name in (text.text, *STREAM, "sampling_parameters"):
            raise unknown_argument(name)
    return dict(fields.left())
