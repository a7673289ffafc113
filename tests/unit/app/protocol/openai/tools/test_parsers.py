"""Texts of models to content and calls, wherever the texts are cut."""

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocol.openai.tools.events import Arguments, Call, Content, Event, merged
from app.protocol.openai.tools.parsers import PARSERS, Hermes, Llama3, Mistral, Named, Parser, Required

NAMES = ("get_weather", "sum-all")
Found = tuple[str, list[tuple[str, str]]]
"""Content, and name and arguments of each call."""


def parsed(parser: Parser, pieces: Iterable[str]) -> Found:
    """Feed pieces; every event must have its call in front of it."""
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.end()
    content, calls = "", list[tuple[str, str]]()
    for event in events:
        match event:
            case Content(text):
                content += text
            case Call(index, name):
                assert index == len(calls)
                calls.append((name, ""))
            case Arguments(index, text):
                assert index == len(calls) - 1
                calls[index] = (calls[index][0], calls[index][1] + text)
    return content, calls


def whole(form: type[Parser], text: str) -> Found:
    return parsed(form(NAMES), [text])


ARGUMENTS = '{"city":  "K\\u00f6ln \\"x\\" }]", "days": [1, {"a": 2.50}]}'
WEATHER = f'{{"name": "get_weather", "arguments": {ARGUMENTS}}}'
SUM = '{ "parameters" : {"of": []}, "type": "function", "name":"sum-all" }'
CALLS = [("get_weather", ARGUMENTS), ("sum-all", '{"of": []}')]


@pytest.mark.parametrize(
    ("form", "text", "content", "calls"),
    [
        (Llama3, f"<|python_tag|>{WEATHER}", "", CALLS[:1]),
        (Llama3, f"\n{WEATHER}; {SUM}\n", "", CALLS),
        (Llama3, f"{WEATHER}assistant\n\n", "assistant\n\n", CALLS[:1]),
        (Hermes, f"<tool_call>\n{WEATHER}\n</tool_call>", "", CALLS[:1]),
        (Hermes, f"I look.\n<tool_call>{WEATHER}</tool_call>\n<tool_call>{SUM}", "I look.\n", CALLS),
        (Hermes, f"<tool_call>{WEATHER}</tool_call> and <b", " and <b", CALLS[:1]),
        (Mistral, f"[TOOL_CALLS] [{WEATHER}, {SUM}]", "", CALLS),
        (Mistral, f"[{WEATHER}]", "", CALLS[:1]),
        (Mistral, f"Now:[TOOL_CALLS]get_weather{ARGUMENTS}", "Now:", CALLS[:1]),
        (
            Mistral,
            f'[TOOL_CALLS]get_weather[CALL_ID]abc[ARGS]{ARGUMENTS}[TOOL_CALLS]sum-all{{"of": []}}',
            "",
            CALLS,
        ),
        (Required, f" {SUM}\n", "", CALLS[1:]),
    ],
)
def test_calls_are_found_with_their_arguments_as_written(
    form: type[Parser], text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    assert whole(form, text) == (content, calls)
    assert parsed(form(NAMES), text) == (content, calls)  # character by character


@pytest.mark.parametrize("form", PARSERS.values(), ids=PARSERS)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "It is warm.",
        '{"city": "Köln"}',
        '{"name": "Bob", "age": 3}',
        '{"name": "get_weather", "colour": 1}',
        '{"name": "get_weather", "arguments": 3}',
        '{"name": "get_weather"',
        '{"name": "get_weather\\',
        "[1, 2]",
        "[]",
        "{}",
        "<tool_call>no JSON</tool_call>",
        "<tool_call",
        "<|python_tag|>search.call(query='x')",
        "<|python",
        "[TOOL_CALLS]",
        "[TOOL_CALLS]unknown{}",
        "[TOOL_CALLS]get_weather",
        "[TOOL_CALLS][3]",
    ],
)
def test_text_that_proves_to_be_no_call_is_content(form: type[Parser], text: str) -> None:
    assert whole(form, text) == (text, [])
    assert parsed(form(NAMES), text) == (text, [])


def test_arguments_within_a_text_or_missing() -> None:
    inner = json.dumps({"city": "Köln"})
    given = json.dumps({"name": "get_weather", "arguments": inner})
    assert whole(Llama3, given) == ("", [("get_weather", inner)])
    for text in ('{"name": "sum-all"}', '{"name": "sum-all", "parameters": null}'):
        assert whole(Llama3, text) == ("", [("sum-all", "{}")])


@pytest.mark.parametrize("form", PARSERS.values(), ids=PARSERS)
def test_arguments_come_while_they_are_written(form: type[Parser]) -> None:
    marker = {"llama3": "", "hermes": "<tool_call>", "mistral": "[TOOL_CALLS]["}
    parser = form(NAMES)
    begun = marker[next(name for name, each in PARSERS.items() if each is form)]
    assert parser.feed(begun + '{"name": "get_weather", "arguments": ') == []
    assert parser.feed('{"city": "K') == [Call(0, "get_weather"), Arguments(0, '{"city": "K')]
    assert parser.feed("öln") == [Arguments(0, "öln")]
    assert parser.end() == []


def test_a_call_that_is_cut_off_keeps_what_there_is() -> None:
    assert whole(Llama3, '{"name": "get_weather", "parameters": {"city": "K\\') == (
        "",
        [("get_weather", '{"city": "K\\')],
    )


def test_a_forced_function_has_all_the_text() -> None:
    assert parsed(Named(["f"]), ['{"a"', ": 1}"]) == ("", [("f", '{"a": 1}')])
    assert parsed(Named(["f"]), []) == ("", [("f", "")])


def test_only_the_first_call_counts_where_calls_may_not_be_parallel() -> None:
    assert parsed(Llama3(NAMES, single=True), f"{WEATHER};{SUM}") == ("", CALLS[:1])


FRAGMENTS = st.sampled_from(
    [
        *("[TOOL_CALLS]", "<tool_call>", "</tool_call>", "<|python_tag|>", "[CALL_ID]x1", "[ARGS]"),
        *(WEATHER, SUM, "get_weather", "sum-all", ARGUMENTS, '{"name": "no"', '"name"', '"arguments"'),
        *("[", "]", "{", "}", ",", ";", ":", '"', "\\", " ", "\n", "<", "null", "ü", "€", "\U0001f642"),
    ]
)
TEXTS = st.lists(FRAGMENTS, max_size=14).map("".join) | st.text('{}[]",:\\ an', max_size=30)
FORMS = st.sampled_from([*PARSERS.values(), Required, Named])


def cut(text: str, places: Sequence[int]) -> list[str]:
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[one:other] for one, other in pairwise(bounds)]


@given(form=FORMS, text=TEXTS, places=st.lists(st.integers(0, 500), max_size=12), limit=st.integers(1, 300))
def test_calls_are_the_same_wherever_the_text_is_cut(
    form: type[Parser], text: str, places: list[int], limit: int
) -> None:
    one, other = form(NAMES, limit), form(NAMES, limit)
    assert parsed(one, [text]) == parsed(other, cut(text, places))
    assert (one.calls, one.too_long) == (other.calls, other.too_long)


@given(form=FORMS, text=TEXTS)
def test_nothing_is_lost_without_a_call(form: type[Parser], text: str) -> None:
    content, calls = whole(form, text)
    assert calls or content == text


@pytest.mark.parametrize("form", [*PARSERS.values(), Named])
def test_calls_are_bounded(form: type[Parser]) -> None:
    text = "[TOOL_CALLS][" if form is Mistral else "<tool_call>" if form is Hermes else ""
    text += '{"name": "get_weather", "arguments": {"city": "' + "€" * 10**6
    parser = form(NAMES, 1000)
    content, calls = parsed(parser, [text])
    ((_, arguments),) = calls
    assert parser.too_long and not content
    assert 900 < len(arguments.encode()) <= 1000


@pytest.mark.parametrize("form", PARSERS.values(), ids=PARSERS)
def test_text_without_calls_has_no_bound(form: type[Parser]) -> None:
    parser = form(NAMES, 100)
    assert parsed(parser, ["word " * 100] * 10) == ("word " * 1000, [])
    assert not parser.too_long


def test_no_text_is_kept_that_was_passed_on() -> None:
    """A long text of calls is read in pieces, each of them once: the state stays small."""
    parser = Hermes(NAMES, 1 << 30)
    parser.feed('<tool_call>{"name": "get_weather", "arguments": {"city": "')
    for _ in range(1000):
        assert parser.feed("x" * 100) == [Arguments(0, "x" * 100)]
        assert len(parser._reading._text) <= 100


def test_pieces_are_joined() -> None:
    given: list[Event] = [
        Content("a"),
        Content(""),
        Content("b"),
        Call(0, "f"),
        Arguments(0, "{"),
        Arguments(0, "}"),
    ]
    assert list(merged(given)) == [Content("ab"), Call(0, "f"), Arguments(0, "{}")]
    assert list(merged([Content(""), Arguments(0, "")])) == []
