"""Chats, rendered by the model's own template, in the version that answers."""

import json
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

MAX_CHARACTERS: Final = 4 << 20
"""Of a rendered chat."""
TEMPLATE_S: Final = 5.0
"""How long a template may take."""
_NAMES: Final = frozenset({"messages", "tools", "arguments"})
_RESERVED: Final = frozenset(
    {
        *("conversation", "messages", "tools", "documents", "chat_template", "tokenize", "return_dict"),
        *("padding", "truncation", "max_length", "return_tensors", "return_assistant_tokens_mask"),
        *("tokenizer_kwargs", "processor_kwargs", "sanitize_control_tokens"),
    }
)
"""Arguments of `apply_chat_template` that a request may not set."""
_TEMPLATE: Final = "<template>"
"""The file that Jinja says compiled templates are of."""


def render(tokenizer: Any, text: str) -> str:
    """Return the prompt of a chat.

    Args:
        tokenizer: of transformers; its environment of Jinja is a sandbox that changes nothing it is given.
        text: a JSON object with `messages`, and maybe `tools` and `arguments` of the template.

    Raises:
        ValueError: with a text for the client.
    """
    chat = _read(text)
    arguments = {"add_generation_prompt": True, **chat.get("arguments", {})}
    if getattr(tokenizer, "chat_template", None) is None:
        raise ValueError("the model has no chat template: send a prompt")
    try:
        with _Deadline(TEMPLATE_S):
            prompt: str = tokenizer.apply_chat_template(
                chat["messages"], tools=chat.get("tools") or None, tokenize=False, **arguments
            )
    except Exception as error:  # the template's own refusals among them
        raise ValueError(f"the chat template failed: {str(error)[:500]}") from error
    if len(prompt) > MAX_CHARACTERS:
        raise ValueError(f"the chat has {len(prompt)} characters, more than {MAX_CHARACTERS}")
    return prompt


def _read(text: str) -> dict[str, Any]:
    try:
        chat = json.loads(text)
    except RecursionError:
        raise ValueError("messages is nested too deeply") from None
    if not isinstance(chat, dict) or not isinstance(chat.get("messages"), list) or not chat["messages"]:
        raise ValueError("messages must be a JSON object with a list 'messages'")
    _refuse(chat.keys() - _NAMES, "messages has no")
    for name, kind in (("tools", list), ("arguments", dict)):
        if not isinstance(chat.get(name, kind()), kind | None):
            raise ValueError(f"'{name}' of messages must be {'a list' if kind is list else 'an object'}")
    _refuse({*(chat.get("arguments") or {})} & _RESERVED, "arguments of a chat template may not be")
    chat["arguments"] = chat.get("arguments") or {}
    return {**chat, "messages": [_message(each) for each in chat["messages"]]}


def _refuse(names: set[str], why: str) -> None:
    if names:
        raise ValueError(f"{why} '{min(names)[:100]}'")


def _message(given: Any) -> dict[str, Any]:
    """Return a message as templates expect it: arguments of calls are objects, not text as OpenAI's are."""
    if not isinstance(given, dict) or not isinstance(given.get("role"), str):
        raise ValueError("each of messages must be an object with a 'role'")
    # transformers leaves out what is None, and templates add the content to texts.
    found = {**given, "content": "" if given.get("content") is None else given["content"]}
    if not isinstance(given.get("tool_calls"), list):
        return found
    return {**found, "tool_calls": [_call(each) for each in given["tool_calls"]]}


def _call(given: Any) -> Any:
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return given
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        raise ValueError("arguments of tool_calls must be JSON") from None
    return {**given, "function": {**function, "arguments": arguments}}


class _Deadline:
    """Ends a template that takes too long, at its next line."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = 0.0
        self._before: Callable[..., Any] | None = None

    def __enter__(self) -> None:
        self._end = time.monotonic() + self._seconds
        self._before = sys.gettrace()
        sys.settrace(self._called)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _called(self, frame: FrameType, event: str, given: Any) -> Callable[..., Any] | None:
        return self._line if frame.f_code.co_filename == _TEMPLATE else None

    def _line(self, frame: FrameType, event: str, given: Any) -> Callable[..., Any]:
        if time.monotonic() > self._end:
            raise TimeoutError(f"it takes longer than {self._seconds:g} s")
        return self._line
