"""Calls in messages and streams, as the types and the client of openai read them."""

import re
from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessageFunctionToolCall
from openai.types.chat.chat_completion_chunk import ChoiceDeltaToolCall
from pydantic import TypeAdapter

from app.protocol.openai.tools.deltas import CallReader, new_id
from app.protocol.openai.tools.parsers import Hermes, Llama3, Mistral

TEXT = (
    'So:<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call><tool_call>{"name": "g"}</tool_call> done'
)


def test_a_stream_has_each_name_and_id_once_and_is_valid() -> None:
    reader = CallReader(Hermes(["f", "g"]), "hermes")
    content, found = "", list[ChoiceDeltaToolCall]()
    for at, character in enumerate(TEXT):
        piece, deltas = reader.push(character, at == len(TEXT) - 1)
        content += piece
        found += [TypeAdapter(ChoiceDeltaToolCall).validate_python(each, strict=True) for each in deltas]
    assert content == "So: done"
    for place, (name, arguments) in enumerate((("f", '{"a": 1}'), ("g", "{}"))):
        of_call = [each for each in found if each.index == place]
        first, functions = of_call[0], [each.function for each in of_call if each.function]
        assert first.type == "function"
        assert [each.id for each in of_call if each.id] == [first.id]
        assert [each.name for each in functions if each.name] == [name]
        assert "".join(each.arguments or "" for each in functions) == arguments


def test_a_piece_has_one_delta_for_each_call() -> None:
    _, deltas = CallReader(Hermes(["f", "g"]), "hermes").push(TEXT, True)
    assert [(each["index"], each["function"]["arguments"]) for each in deltas] == [(0, '{"a": 1}'), (1, "{}")]


def test_a_message_has_the_same_calls() -> None:
    reader = CallReader(Hermes(["f", "g"]), "hermes")
    _, deltas = reader.push(TEXT, True)
    calls: list[Any] = reader.whole()
    for call in calls:
        TypeAdapter(ChatCompletionMessageFunctionToolCall).validate_python(call, strict=True)
    functions = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
    assert functions == [("f", '{"a": 1}'), ("g", "{}")]
    assert [call["id"] for call in calls] == [each["id"] for each in deltas if "id" in each]


@pytest.mark.parametrize(
    ("form", "pattern"), [("llama3", r"call_[0-9a-f]{24}"), ("mistral", r"[a-zA-Z0-9]{9}")]
)
def test_ids_are_those_that_templates_take(form: str, pattern: str) -> None:
    assert re.fullmatch(pattern, new_id(form))
    assert new_id(form) != new_id(form)


def test_calls_beyond_the_limit_end_the_text() -> None:
    reader = CallReader(Llama3(["f"], 40), "llama3")
    reader.push('{"name": "f", "arguments": {"a": "', False)
    assert not reader.too_long
    reader.push("x" * 100, False)
    assert reader.too_long
    assert CallReader(Mistral(["f"], 40), "mistral").push("x" * 100, True) == ("x" * 100, [])
