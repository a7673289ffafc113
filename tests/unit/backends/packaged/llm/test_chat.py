"""Chats, on their way into a template."""

import json
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from backends.packaged.llm import chat


class Tokenizer:
    """Renders as one of transformers does."""

    def __init__(self, template: str | None) -> None:
        self.chat_template = template

    def apply_chat_template(self, messages: Any, **arguments: Any) -> str:
        assert arguments.pop("tokenize") is False
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        return environment.from_string(self.chat_template or "").render(messages=messages, **arguments)


PLAIN = Tokenizer("{% for each in messages %}<{{ each.role }}>{{ each.content }}{% endfor %}{{ thinks }}")
CALLS = Tokenizer("{% for call in messages[0].tool_calls %}{{ call.function.arguments.city }}{% endfor %}")


def rendered(tokenizer: Tokenizer, **given: Any) -> str:
    return chat.render(tokenizer, json.dumps(given))


def test_template_gets_messages_and_arguments() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    assert rendered(PLAIN, messages=messages, arguments={"thinks": True}, tools=None) == "<user>HiTrue"
    tokenizer = Tokenizer("{{ add_generation_prompt }} {{ tools }}")
    assert rendered(tokenizer, messages=messages, tools=[]) == "True None"
    assert rendered(tokenizer, messages=messages, arguments={"add_generation_prompt": False}) == "False None"


def test_arguments_of_calls_are_objects() -> None:
    call = {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Dallas"}'}}
    messages = [{"role": "assistant", "tool_calls": [call]}]
    assert rendered(CALLS, messages=messages) == "Dallas"


@pytest.mark.parametrize("given", [{}, {"content": None}])
def test_a_message_without_content_has_an_empty_one(given: dict[str, Any]) -> None:
    template = Tokenizer("{{ '<' + messages[0]['content'] + '>' }}")
    assert rendered(template, messages=[{"role": "assistant", **given}]) == "<>"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "messages must be a JSON object with a list 'messages'"),
        ('{"messages": []}', "messages must be a JSON object with a list 'messages'"),
        ('{"messages": [1]}', "each of messages must be an object with a 'role'"),
        ('{"messages": [{"role": "user"}], "x": 1}', "messages has no 'x'"),
        ('{"messages": [{"role": "user"}], "tools": {}}', "'tools' of messages must be a list"),
        (
            '{"messages": [{"role": "user"}], "arguments": {"tokenize": true}}',
            "arguments of a chat template may not be 'tokenize'",
        ),
        (
            '{"messages": [{"role": "user"}], "arguments": {"chat_template": "x"}}',
            "arguments of a chat template may not be 'chat_template'",
        ),
        (
            '{"messages": [{"role": "a", "tool_calls": [{"function": {"arguments": "{"}}]}]}',
            "arguments of tool_calls must be JSON",
        ),
        ('{"messages": ' + "[" * 100_000, "messages is nested too deeply"),
    ],
)
def test_chat_that_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        chat.render(PLAIN, text)
    assert str(caught.value) == message


def test_model_without_a_template() -> None:
    with pytest.raises(ValueError, match="the model has no chat template: send a prompt"):
        rendered(Tokenizer(None), messages=[{"role": "user"}])


def test_template_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "TEMPLATE_S", 0.1)
    loops = "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3
    with pytest.raises(ValueError, match=r"the chat template failed: it takes longer than 0.1 s"):
        rendered(Tokenizer(loops), messages=[{"role": "user"}])


def test_template_that_fails_or_writes_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="the chat template failed: access to attribute"):
        rendered(Tokenizer("{{ ''.__class__.__mro__ }}"), messages=[{"role": "user"}])
    monkeypatch.setattr(chat, "MAX_CHARACTERS", 5)
    with pytest.raises(ValueError, match="the chat has 6 characters, more than 5"):
        rendered(PLAIN, messages=[{"role": "user"}])
