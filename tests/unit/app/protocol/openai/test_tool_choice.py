"""Tools and choices of requests, and the schemas that force a call."""

from typing import Any

import pytest

from app.core.config.text_models import TextModel, TextSettings
from app.protocol.openai.errors import OpenAIError
from app.protocol.openai.fields import Fields
from app.protocol.openai.tool_choice import MAX_TOOLS, Tools, read_tools
from app.protocol.openai.tools.parsers import Llama3, Named, Required

SCHEMA = {"type": "object", "properties": {"city": {"$ref": "#/$defs/C"}}, "$defs": {"C": {"type": "string"}}}


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


WEATHER, SUM = tool("weather", parameters=SCHEMA), tool("sum")


def read(form: str = "llama3", kind: Any = "vllm", **fields: Any) -> Tools:
    text = TextModel(kind, ("chat",), "text_input", "text_output", False, False, TextSettings())
    return read_tools(Fields(fields), text, form)


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {
        "type": "allowed_tools",
        "allowed_tools": {"mode": mode, "tools": [tool(name) for name in names]},
    }


@pytest.mark.parametrize(
    ("choice", "mode", "names", "parser"),
    [
        (None, "auto", ("weather", "sum"), Llama3),
        ("auto", "auto", ("weather", "sum"), Llama3),
        ("none", "none", ("weather", "sum"), None),
        ("required", "required", ("weather", "sum"), Required),
        (tool("sum"), "named", ("sum",), Named),
        (allowed("auto", "sum"), "auto", ("sum",), Llama3),
        (allowed("required", "sum", "sum"), "required", ("sum",), Required),
    ],
)
def test_choices(choice: Any, mode: str, names: tuple[str, ...], parser: type | None) -> None:
    found = read(tools=[WEATHER, SUM], tool_choice=choice)
    assert (found.mode, found.names, found.definitions) == (mode, names, [WEATHER, SUM])
    assert type(found.parser(100)) is (parser or type(None))
    assert (found.guide() is not None) == found.forced == (mode in ("required", "named"))


@pytest.mark.parametrize("choice", [None, "none", "auto"])
def test_without_tools_no_call_is_looked_for(choice: Any) -> None:
    assert read(form="", tool_choice=choice) == Tools([])
    assert read(form="", tools=[], tool_choice=choice).parser(100) is None


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        (
            {"tool_choice": "required", "tools": []},
            "tools",
            '"required" tool choice requires CreateChatCompletionRequest.tools to be provided',
        ),
        (
            {"tool_choice": tool("sum")},
            "tools",
            "Named tool choice requires CreateChatCompletionRequest.tools to be provided",
        ),
        ({"tools": [SUM], "tool_choice": tool("x")}, "tool_choice", "'tools' has no function 'x'"),
        ({"tools": [SUM], "tool_choice": "always"}, "tool_choice", "must be one of 'none'"),
        ({"tools": [SUM], "tool_choice": 3}, "tool_choice", "expected a text or an object"),
        ({"tools": [SUM], "tool_choice": {"type": "custom"}}, "tool_choice", "expected a function"),
        (
            {"tools": [SUM], "tool_choice": allowed("none", "sum")},
            "tool_choice.allowed_tools.mode",
            "must be",
        ),
        ({"tools": [SUM], "tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools", "1 to 128"),
        ({"tools": [SUM], "tool_choice": allowed("auto", "x")}, "tool_choice", "no function 'x'"),
        ({"tools": [SUM, SUM]}, "tools", "several of the name 'sum'"),
        ({"tools": [SUM] * (MAX_TOOLS + 1)}, "tools", "at most 128 items"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type", "only functions are"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "expected an object"),
        ({"tools": [tool("a b")]}, "tools[0].function.name", "must be 1 to 64"),
        ({"tools": [tool("a", parameters=[])]}, "tools[0].function.parameters", "expected an object"),
        ({"tools": [SUM], "parallel_tool_calls": 1}, "parallel_tool_calls", "expected a boolean"),
    ],
)
def test_mistakes_name_the_field(fields: dict[str, Any], param: str, text: str) -> None:
    with pytest.raises(OpenAIError) as raised:
        read(**fields)
    assert raised.value.param == param
    assert text in raised.value.message


def test_a_form_of_calls_is_needed_where_the_text_decides() -> None:
    with pytest.raises(OpenAIError, match="having tools in the request requires --tool-call-parser"):
        read(form="", tools=[SUM])
    with pytest.raises(OpenAIError, match='"auto" tool choice requires --tool-call-parser to be set'):
        read(form="", tools=[SUM], tool_choice="auto")
    assert read(form="", tools=[SUM], tool_choice="required").forced


def test_a_call_is_forced_only_where_a_text_can_be_guided() -> None:
    for choice in ("required", tool("sum")):
        with pytest.raises(OpenAIError, match="cannot be guided"):
            read(kind="text", tools=[SUM], tool_choice=choice)


def test_a_named_function_is_forced_by_its_parameters() -> None:
    assert read(tools=[WEATHER], tool_choice=tool("weather")).guide() == {"json": SCHEMA}
    assert read(tools=[SUM], tool_choice=tool("sum")).guide() == {"json": {"type": "object"}}


def test_one_of_several_is_forced_and_references_lead_to_their_new_place() -> None:
    guide = read(tools=[SUM, WEATHER], tool_choice="required").guide()
    assert guide is not None
    first, second = guide["json"]["anyOf"]
    assert first["properties"] == {"name": {"const": "sum"}, "arguments": {"type": "object"}}
    assert second["required"] == ["name", "arguments"]
    arguments = second["properties"]["arguments"]
    assert arguments["properties"]["city"] == {"$ref": "#/anyOf/1/properties/arguments/$defs/C"}
    assert arguments["$defs"] == SCHEMA["$defs"]


def test_schemas_that_force_a_call_are_bounded() -> None:
    large = tool("large", parameters={"type": "object", "description": "x" * (64 << 10)})
    with pytest.raises(OpenAIError, match="at most 65536 bytes"):
        read(tools=[large], tool_choice="required").guide()
    assert read(tools=[large]).guide() is None


def test_reasons_are_those_of_openai() -> None:
    auto, required = read(tools=[SUM]), read(tools=[SUM], tool_choice="required")
    named = read(tools=[SUM], tool_choice=tool("sum"))
    assert [each.reason("stop", 1) for each in (auto, required, named)] == [
        "tool_calls",
        "tool_calls",
        "stop",
    ]
    assert [each.reason("length", 1) for each in (auto, required, named)] == ["length"] * 3
    assert auto.reason("stop", 0) == "stop"
