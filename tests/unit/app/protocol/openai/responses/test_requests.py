"""Fields of responses: what is refused, by the names that responses have for it."""

from typing import Any

import pytest

from app.core.config.text_models import TextModel, TextSettings
from app.protocol.openai.errors import OpenAIError
from app.protocol.openai.fields import Fields
from app.protocol.openai.responses.requests import read_response
from app.protocol.openai.texts.requests import Defaults

MODEL = TextModel("vllm", ("chat",), "text_input", "text_output", False, False, TextSettings())
TOOLS = [{"type": "function", "name": "weather", "parameters": {"type": "object"}}]
ITEM = {"role": "user", "content": "say"}


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"messages": []}, "messages"),
        ({"n": 2}, "n"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [ITEM, 3]}, "input[1]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}]},
            "input[0].arguments",
        ),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"metadata": "x"}, "metadata"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_wrong_field_is_named(more: dict[str, Any], param: str) -> None:
    with pytest.raises(OpenAIError) as error:
        read_response(Fields({"input": "say", **more}), MODEL, frozenset(), Defaults(0, "hermes"))
    assert error.value.param == param, error.value.message
    assert "CreateChat" not in error.value.message and "max_completion" not in error.value.message
