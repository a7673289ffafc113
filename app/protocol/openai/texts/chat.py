"""Requests of `/v1/chat/completions`: messages, and how their answer is to be. No I/O."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from app.core.config.text_models import TextModel
from app.protocol.openai.errors import invalid, refused
from app.protocol.openai.fields import Fields, as_text, parse_json, said, wrong_type
from app.protocol.openai.texts.requests import Defaults, TextRequest, read_request
from app.protocol.openai.texts.sampling import MAX_TOP_LOGPROBS
from app.protocol.openai.tool_choice import read_tools

MAX_MESSAGES: Final = 8192
_MAX_PARTS: Final = 4096
_MAX_CALLS: Final = 128
_MAX_SCHEMA_BYTES: Final = 64 << 10
_ROLES: Final = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_USE_TOOLS: Final = "use tools"
_REFUSED: Final = {
    "functions": _USE_TOOLS,
    "function_call": _USE_TOOLS,
    "audio": "",
    "chat_template": "a model's template is its own",
    "echo": "",
}


def read_chat(fields: Fields, text: TextModel, known: frozenset[str], defaults: Defaults) -> TextRequest:
    """Read a request; see `read_completion`.

    Raises:
        OpenAIError: a field is not allowed.
    """
    fields.refuse(_REFUSED)
    _check_modalities(fields)
    fields.require("messages")
    messages = fields.items("messages", MAX_MESSAGES) or []
    if not messages:
        raise invalid("Invalid 'messages': must not be empty", "messages")
    chat: dict[str, Any] = {"messages": [_message(each, at) for at, each in enumerate(messages)]}
    logprobs = _logprobs(fields)
    arguments = _arguments(fields, text)
    tools = read_tools(fields, text, defaults.tool_parser)
    guide = _response_format(fields)
    guide = tools.guide() or guide
    request = read_request(fields, text, known, [""], defaults.max_tokens or None)
    request.sampling.logprobs = logprobs
    if guide is not None:
        if text.format != "vllm":
            raise refused("response_format", "by this model, which cannot be guided")
        request.sampling.values["structured_outputs"] = guide
    request.tools = tools
    more = {"tools": tools.definitions, "arguments": arguments}
    request.chat = chat | {name: value for name, value in more.items() if value}
    return request


def _check_modalities(fields: Fields) -> None:
    given = fields.take("modalities")
    if given is not None and given != ["text"]:
        raise refused("modalities", "beyond text")


def _logprobs(fields: Fields) -> int | None:
    wanted, top = fields.flag("logprobs"), fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    if top is not None and not wanted:
        raise invalid("`top_logprobs` can only be used when `logprobs` is True", "top_logprobs")
    return (top or 0) if wanted else None


def _arguments(fields: Fields, text: TextModel) -> dict[str, Any]:
    """Return what the template gets beside the messages: names that the model's settings allow."""
    allowed = text.settings.template_kwargs
    effort = fields.take("reasoning_effort")
    found = {"reasoning_effort": effort} if effort is not None and "reasoning_effort" in allowed else {}
    given = fields.take("chat_template_kwargs")
    if given is None:
        return found
    if not isinstance(given, dict):
        raise wrong_type("chat_template_kwargs", "an object", given)
    for name in given:
        if name not in allowed:
            raise refused(f"chat_template_kwargs.{name}", "the model's settings allow no such name")
    return found | given


def _response_format(fields: Fields) -> dict[str, Any] | None:
    """Return what guides the answer, in vLLM's form; None for nothing."""
    given = fields.object("response_format")
    if given is None:
        return None
    kind = given.choice("type", ("text", "json_object", "json_schema"))
    if kind == "json_object":
        return {"json_object": True}
    if kind != "json_schema":
        return None
    given.require("json_schema")
    described = given.object("json_schema")
    assert described is not None, "it is required"
    schema = described.take("schema")
    where = "response_format.json_schema.schema"
    if not isinstance(schema, dict):
        raise wrong_type(where, "an object", schema)
    if len(msgspec.json.encode(schema)) > _MAX_SCHEMA_BYTES:
        raise invalid(f"Invalid '{where}': must have at most {_MAX_SCHEMA_BYTES} bytes", where)
    return {"json": schema}


def _message(given: Any, at: int) -> dict[str, Any]:
    """Return a message as templates read it."""
    where = f"messages[{at}]"
    if not isinstance(given, dict):
        raise wrong_type(where, "an object", given)
    role = given.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise invalid(f"Invalid '{where}.role': {said(role)} is none of {', '.join(_ROLES)}", f"{where}.role")
    calls = given.get("tool_calls")
    found: dict[str, Any] = {"role": _ROLES[role]}
    content = given.get("content")
    if content is None and not (role == "assistant" and calls):
        raise invalid(f"Missing required parameter: '{where}.content'", f"{where}.content")
    # Templates add it to texts: nothing is an empty text, as in vLLM.
    found["content"] = "" if content is None else _content(content, f"{where}.content")
    for name in ("name", "tool_call_id", "reasoning_content"):
        if given.get(name) is not None:
            found[name] = as_text(given[name], f"{where}.{name}")
    if calls is not None and role == "assistant":
        found["tool_calls"] = _calls(calls, f"{where}.tool_calls")
    return found


def _content(given: Any, where: str) -> str:
    """Return the text of a message; its parts are joined by line breaks, as in vLLM."""
    if isinstance(given, str):
        return as_text(given, where)
    if not isinstance(given, list):
        raise wrong_type(where, "a text or an array of parts", given)
    if len(given) > _MAX_PARTS:
        raise invalid(f"Invalid '{where}': must have at most {_MAX_PARTS} parts, got {len(given)}", where)
    return "\n".join(_part(each, f"{where}[{at}]") for at, each in enumerate(given))


def _part(given: Any, where: str) -> str:
    if not isinstance(given, dict):
        raise wrong_type(where, "an object", given)
    kind = given.get("type")
    if kind == "text":
        return as_text(given.get("text"), f"{where}.text")
    if kind == "refusal":
        return as_text(given.get("refusal"), f"{where}.refusal")
    raise refused(f"{where}.type", f"{said(kind)}: the model takes text")


def _calls(given: Any, where: str) -> list[dict[str, Any]]:
    """Return calls of tools whose arguments are objects, as templates want them."""
    if not isinstance(given, list):
        raise wrong_type(where, "an array", given)
    if len(given) > _MAX_CALLS:
        raise invalid(f"Invalid '{where}': must have at most {_MAX_CALLS} calls, got {len(given)}", where)
    return [_call(each, f"{where}[{at}]") for at, each in enumerate(given)]


def _call(given: Any, where: str) -> dict[str, Any]:
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(function, dict):
        raise invalid(f"Invalid '{where}': expected a call of a function", where)
    name = as_text(function.get("name"), f"{where}.function.name")
    arguments = read_arguments(function.get("arguments", "{}"), f"{where}.function.arguments")
    found = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return found | ({"id": as_text(given["id"], f"{where}.id")} if given.get("id") is not None else {})


def read_arguments(given: Any, where: str) -> Mapping[str, Any]:
    """Return the arguments of a call, which are the text of a JSON object.

    Raises:
        OpenAIError: they are none.
    """
    text = as_text(given, where)
    try:
        found = parse_json(text) if text.strip() else {}
    except ValueError:
        raise invalid(f"Invalid '{where}': it is no JSON", where) from None
    if not isinstance(found, dict):
        raise invalid(f"Invalid '{where}': it is no JSON object", where)
    return found
