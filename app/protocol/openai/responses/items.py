"""The input of a response, a text or items, as the messages of a chat. No I/O."""

from collections.abc import Mapping
from typing import Any, Final

from app.protocol.openai.errors import invalid, refused
from app.protocol.openai.fields import as_text, said, wrong_type
from app.protocol.openai.texts.chat import MAX_MESSAGES, read_arguments

_ROLES: Final = ("user", "assistant", "system", "developer")
_TEXTS: Final = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
"""Parts of messages, by the field that has their text."""
_KEPT: Final = "nothing is kept here: send the item itself"
_ELSEWHERE: Final = {
    "item_reference": _KEPT,
    "reasoning": "send messages, calls of functions and their outputs",
}


def read_input(given: Any, instructions: str) -> list[dict[str, Any]]:
    """Return the messages of a request.

    Args:
        given: the field `input`.
        instructions: precede it; "" for none.

    Raises:
        OpenAIError: it is no text and no list of items that a chat can have.
    """
    found = list[dict[str, Any]]()
    if instructions:
        found.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        return [*found, {"role": "user", "content": given}]
    if not isinstance(given, list):
        raise wrong_type("input", "a text or an array of items", given)
    if not 0 < len(given) <= MAX_MESSAGES:
        raise invalid(f"Invalid 'input': must have 1 to {MAX_MESSAGES} items, got {len(given)}", "input")
    for at, item in enumerate(given):
        _add(found, item, f"input[{at}]")
    return found


def _add(found: list[dict[str, Any]], item: Any, where: str) -> None:
    """Add an item to messages; calls belong to the message of the assistant in front of them."""
    if not isinstance(item, dict):
        raise wrong_type(where, "an object", item)
    kind = item.get("type") or "message"
    if kind == "message":
        found.append(_message(item, where))
    elif kind == "function_call":
        if not found or found[-1]["role"] != "assistant":
            found.append({"role": "assistant", "content": ""})
        found[-1].setdefault("tool_calls", []).append(_call(item, where))
    elif kind == "function_call_output":
        call_id = as_text(item.get("call_id"), f"{where}.call_id")
        output = _text(item.get("output"), f"{where}.output")
        found.append({"role": "tool", "tool_call_id": call_id, "content": output})
    else:
        raise refused(f"{where}.type", f"{said(kind)}: {_ELSEWHERE.get(str(kind), 'the model takes text')}")


def _message(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    role = item.get("role")
    if role not in _ROLES:
        raise invalid(f"Invalid '{where}.role': {said(role)} is none of {', '.join(_ROLES)}", f"{where}.role")
    return {"role": role, "content": _text(item.get("content"), f"{where}.content")}


def _text(given: Any, where: str) -> str:
    """Return a text, or the texts of parts, joined by line breaks as those of chats are."""
    if not isinstance(given, list):
        return as_text(given, where)
    if len(given) > MAX_MESSAGES:
        raise invalid(f"Invalid '{where}': must have at most {MAX_MESSAGES} parts, got {len(given)}", where)
    return "\n".join(_part(each, f"{where}[{at}]") for at, each in enumerate(given))


def _part(given: Any, where: str) -> str:
    if not isinstance(given, dict):
        raise wrong_type(where, "an object", given)
    kind = given.get("type")
    if not isinstance(kind, str) or kind not in _TEXTS:
        raise refused(f"{where}.type", f"{said(kind)}: the model takes text")
    return as_text(given.get(_TEXTS[kind]), f"{where}.{_TEXTS[kind]}")


def _call(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    arguments = item.get("arguments")
    read_arguments(arguments, f"{where}.arguments")
    function = {"name": as_text(item.get("name"), f"{where}.name"), "arguments": arguments}
    call_id = as_text(item.get("call_id"), f"{where}.call_id")
    return {"id": call_id, "type": "function", "function": function}
