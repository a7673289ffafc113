"""Requests of `/v1/responses`: chats under other names. What needs kept responses is refused. No I/O."""

from collections.abc import Mapping
from typing import Any, Final

from app.core.config.text_models import TextModel
from app.protocol.openai.errors import OpenAIError, invalid, refused, unknown_argument
from app.protocol.openai.fields import Fields, said, wrong_type
from app.protocol.openai.responses.items import read_input
from app.protocol.openai.texts.chat import read_chat
from app.protocol.openai.texts.requests import Defaults, TextRequest
from app.protocol.openai.texts.sampling import MAX_TOP_LOGPROBS
from app.protocol.openai.tool_choice import MAX_TOOLS

_STATELESS: Final = "responses are not kept here: send the whole conversation as 'input'"
_REFUSED: Final = {
    "previous_response_id": _STATELESS,
    "conversation": _STATELESS,
    "prompt": "send 'instructions' and 'input'",
    "context_management": "",
    "moderation": "",
    "image": "",
    "access_programs": "",
    "background_options": "",
}
_IGNORED: Final = ("max_tool_calls", "stream_options", "prompt_cache_retention", "prompt_cache_options")
_CHATS: Final = (
    *("messages", "n", "max_tokens", "max_completion_tokens", "response_format", "logprobs", "modalities"),
    *("functions", "function_call", "audio", "echo", "reasoning_effort", "verbosity", "prediction"),
)
"""Fields of chats that responses do not have."""
_LOGPROBS: Final = "message.output_text.logprobs"
_INCLUDED: Final = (_LOGPROBS, "reasoning.encrypted_content")
_NAMES: Final = {
    "response_format.json_schema.": "text.format.",
    "response_format": "text.format",
    "max_completion_tokens": "max_output_tokens",
    "tool_choice.allowed_tools.": "tool_choice.",
    ".function.": ".",
    "CreateChatCompletionRequest.": "",
}
"""What fields of chats are called here."""


def read_response(fields: Fields, text: TextModel, known: frozenset[str], defaults: Defaults) -> TextRequest:
    """Read a request; see `read_completion`.

    Raises:
        OpenAIError: a field is not allowed.
    """
    fields.refuse(_REFUSED)
    fields.drop(_IGNORED)
    for name in _CHATS:
        if fields.has(name):
            raise unknown_argument(name)
    _refuse_states(fields)
    instructions = fields.text("instructions")
    fields.require("input")
    messages = read_input(fields.take("input"), instructions)
    echoed = {"instructions": instructions or None, **_echoed(fields)}
    chat = {"messages": messages, **_translated(fields)}
    try:
        request = read_chat(Fields({**fields.left(), **chat}), text, known, defaults)
    except OpenAIError as error:
        raise _renamed(error) from None
    request.usage, request.echoed = True, echoed
    return request


def _refuse_states(fields: Fields) -> None:
    """Refuse what would have to be kept, or shortened."""
    for name in ("store", "background"):
        if fields.flag(name):
            raise refused(name, "responses are not kept here: send false")
    if fields.choice("truncation", ("auto", "disabled")) == "auto":
        raise refused("truncation", "a conversation is not shortened: send 'disabled'")


def _echoed(fields: Fields) -> dict[str, Any]:
    """Return the fields that answers repeat, which are read as those of a chat afterwards."""
    metadata = fields.take("metadata")
    if not isinstance(metadata, dict | None):
        raise wrong_type("metadata", "an object", metadata)
    given = fields.left()
    repeated = ("temperature", "top_p", "max_output_tokens", "user", "prompt_cache_key", "safety_identifier")
    return {
        "metadata": metadata or {},
        "parallel_tool_calls": given.get("parallel_tool_calls", True),
        "tool_choice": given.get("tool_choice", "auto"),
        "tools": given.get("tools", []),
        "text": given.get("text", {"format": {"type": "text"}}),
        "reasoning": given.get("reasoning"),
        "top_logprobs": given.get("top_logprobs"),
        **{name: given.get(name) for name in repeated},
    }


def _translated(fields: Fields) -> dict[str, Any]:
    """Return what a chat has other names or another form for."""
    tools = fields.items("tools", MAX_TOOLS)
    choice = fields.take("tool_choice")
    found: dict[str, Any] = {
        "max_completion_tokens": fields.take("max_output_tokens"),
        "response_format": _format(fields),
        "tools": None if tools is None else [_tool(each, f"tools[{at}]") for at, each in enumerate(tools)],
        "tool_choice": _choice(choice) if isinstance(choice, dict) else choice,
    }
    if (reasoning := fields.object("reasoning")) is not None:
        found["reasoning_effort"] = reasoning.take("effort")
    included = fields.texts("include", len(_INCLUDED) * 2)
    for each in included:
        if each not in _INCLUDED:
            raise refused("include", f"{said(each)}: only {', '.join(_INCLUDED)}")
    top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    if top or _LOGPROBS in included:
        found |= {"logprobs": True, "top_logprobs": top or 0}
    return found


def _format(fields: Fields) -> dict[str, Any] | None:
    """Return the format of a text as a chat has it: what is beside its type lies in an object of its own."""
    given = fields.object("text")
    wanted = None if given is None else given.take("format")
    if not isinstance(wanted, dict | None):
        raise wrong_type("text.format", "an object", wanted)
    if wanted is None or wanted.get("type") != "json_schema":
        return wanted
    return {
        "type": "json_schema",
        "json_schema": {key: each for key, each in wanted.items() if key != "type"},
    }


def _tool(given: Any, where: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise wrong_type(where, "an object", given)
    if given.get("type") != "function":
        raise refused(f"{where}.type", f"{said(given.get('type'))}: only functions are")
    names = ("name", "description", "parameters", "strict")
    return {
        "type": "function",
        "function": {name: given[name] for name in names if given.get(name) is not None},
    }


def _choice(given: Mapping[str, Any]) -> dict[str, Any]:
    if given.get("type") == "function":
        return {"type": "function", "function": {"name": given.get("name")}}
    if given.get("type") != "allowed_tools":
        raise invalid("Invalid 'tool_choice': expected a function or 'allowed_tools'", "tool_choice")
    tools = given.get("tools")
    chosen = (
        [_choice(each) if isinstance(each, dict) else each for each in tools]
        if isinstance(tools, list)
        else tools
    )
    return {"type": "allowed_tools", "allowed_tools": {"mode": given.get("mode"), "tools": chosen}}


def _renamed(error: OpenAIError) -> OpenAIError:
    """Return an error of a chat in the names of responses."""
    message, param = error.message, error.param
    for old, new in _NAMES.items():
        message = message.replace(old, new)
        param = None if param is None else param.replace(old, new)
    return OpenAIError(message, param, error.slug, error.code, error.status)
