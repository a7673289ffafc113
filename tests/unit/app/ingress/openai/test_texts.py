"""Chats and completions over text models: tensors, answers, streams, errors."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import ErrorCode, Failure, InferError, internal, invalid_arg
from tests.unit.app.http_fakes import IDENTITY
from tests.unit.app.ingress.openai.text_models import (
    TEXT,
    VLLM,
    Piece,
    Reply,
    TextService,
    inputs,
    of,
    post,
)
from tests.unit.app.ingress.running_fronts import Fronts

COMPLETION = {"model": "identity", "prompt": "say"}
CHAT = {"model": "identity", "messages": [{"role": "user", "content": "say"}]}
STREAM = {"stream": True}
CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
Ask = Callable[..., Reply]


@pytest.fixture
def asking(fronts: Fronts) -> Iterator[Callable[..., Ask]]:
    """Opens a front over a service; returns what posts to it."""
    with ExitStack() as stack:

        def start(service: TextService, **settings: Any) -> Ask:
            running = stack.enter_context(fronts(service=service, allow_openai=True, **settings))
            return lambda path, document, **headers: post(running.http_port, path, document, **headers)

        yield start


def test_a_completion_joins_the_pieces_of_a_model(asking: Callable[..., Ask]) -> None:
    service = TextService(of("one ", "two"))
    found = asking(service)(COMPLETIONS, COMPLETION)
    document = found.document
    assert found.status == 200
    assert document.pop("id").startswith("cmpl-") and document.pop("created") > 0
    assert document == {
        "object": "text_completion",
        "model": "identity",
        "system_fingerprint": document["system_fingerprint"],
        "choices": [{"index": 0, "text": "one two", "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }
    (request,) = service.seen
    assert inputs(request) == {"prompt": "say"} and request.parameters == {"max_tokens": 16}
    assert request.id == found.headers["x-request-id"]


def test_a_chat_goes_to_a_model_that_renders_it(asking: Callable[..., Ask]) -> None:
    service = TextService(of("yes"))
    asked = asking(service)
    messages = [{"role": "developer", "content": "be short"}, {"role": "user", "content": [
        {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]  # fmt: skip
    found = asked(CHATS, {"model": "identity", "messages": messages, "temperature": 0.5, "user": "u1"})
    (choice,) = found.document["choices"]
    message = {"role": "assistant", "content": "yes", "refusal": None}
    assert choice == {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    assert found.document["id"].startswith("chatcmpl-")
    given = inputs(service.seen[0])
    assert json.loads(given["messages"]) == {
        "messages": [{"role": "system", "content": "be short"}, {"role": "user", "content": "a\nb"}]
    }
    assert service.seen[0].parameters == {"temperature": 0.5, "user": "u1"}


@pytest.mark.parametrize("empty_end", [False, True])
def test_a_stream_of_a_chat_begins_with_the_role_and_ends_with_the_reason(
    asking: Callable[..., Ask], empty_end: bool
) -> None:
    found = asking(TextService(of("a", "", "b"), empty_end=empty_end))(CHATS, CHAT | STREAM)
    assert found.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert found.headers["cache-control"] == "no-cache"
    *chunks, done = found.events
    assert done == "[DONE]"
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "a"},
        {"content": "b"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]


def test_usage_comes_in_one_more_chunk(asking: Callable[..., Ask]) -> None:
    script = of(
        {"text_output": "a", "num_input_tokens": 3, "num_output_tokens": 1, "finish_reason": "None"},
        {"text_output": "b", "num_input_tokens": 3, "num_output_tokens": 2, "finish_reason": "length"},
    )
    asked = asking(TextService(script, VLLM))
    usage = {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    chunks = asked(COMPLETIONS, COMPLETION | STREAM | {"stream_options": {"include_usage": True}}).events[:-1]
    assert [chunk["usage"] for chunk in chunks] == [None, None, usage]
    assert chunks[-1]["choices"] == [] and chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert asked(COMPLETIONS, COMPLETION).document["usage"] == usage


def test_vllms_backend_gets_its_tensors(asking: Callable[..., Ask]) -> None:
    service = TextService(of({"text_output": "a", "finish_reason": "stop"}), VLLM)
    asked = asking(service)
    body = COMPLETION | {"n": 2, "seed": 7, "stop": "x", "top_k": 3, "max_tokens": 5, "echo": True}
    found = asked(COMPLETIONS, body)
    assert [choice["text"] for choice in found.document["choices"]] == ["saya", "saya"]
    first, second = map(inputs, service.seen)
    assert first.pop("stream") is False
    sampling = json.loads(first.pop("sampling_parameters"))
    assert sampling == {"seed": 7, "top_k": 3, "max_tokens": 5, "stop": ["x"]}
    assert json.loads(second["sampling_parameters"])["seed"] == 8
    assert first == {
        "text_input": "say",
        "exclude_input_in_output": True,
        "return_finish_reason": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
        "return_logprobs": False,
    }


def test_behind_the_greatest_seed_comes_the_least(asking: Callable[..., Ask]) -> None:
    service = TextService(of({"text_output": "a", "finish_reason": "stop"}), VLLM)
    asking(service)(COMPLETIONS, COMPLETION | {"n": 3, "seed": 2**63 - 2})
    seeds = [json.loads(inputs(each)["sampling_parameters"])["seed"] for each in service.seen]
    assert seeds == [2**63 - 2, 2**63 - 1, -(2**63)]


def test_several_prompts_are_choices_in_order(asking: Callable[..., Ask]) -> None:
    service = TextService(lambda request: [inputs(request)["prompt"].upper()])
    body = {"model": "identity", "prompt": ["a", "b"], "n": 2}
    asked = asking(service)
    assert [each["text"] for each in asked(COMPLETIONS, body).document["choices"]] == ["A", "A", "B", "B"]
    assert asked(COMPLETIONS, body | STREAM).texts == {0: "A", 1: "A", 2: "B", 3: "B"}


@pytest.mark.parametrize("cuts", [("abcdeSTOPf",), ("abcdeST", "OPf"), ("abc", "deS", "T", "O", "Pf")])
@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_ends_the_text_of_a_model_that_knows_none(
    asking: Callable[..., Ask], cuts: tuple[str, ...], stream: bool
) -> None:
    service = TextService(of(*cuts, "more"))
    found = asking(service)(COMPLETIONS, COMPLETION | {"stop": ["zzz", "STOP"], "stream": stream})
    if stream:
        assert found.texts == {0: "abcde"}
        assert found.events[-2]["choices"][0]["finish_reason"] == "stop"
    else:
        assert (
            found.document["choices"][0] | {"text": "abcde", "finish_reason": "stop"}
            == found.document["choices"][0]
        )
    assert service.calls[0].cancelled


def test_characters_that_are_cut_between_pieces_are_whole(asking: Callable[..., Ask]) -> None:
    raw = "ä🎉".encode()
    pieces: list[Piece] = [{"answer": raw[:1]}, {"answer": raw[1:4]}, {"answer": raw[4:]}]
    assert asking(TextService(of(*pieces)))(COMPLETIONS, COMPLETION | STREAM).texts == {0: "ä🎉"}


@pytest.mark.parametrize(
    ("failure", "status", "code", "retries"),
    [
        (internal("it broke"), 500, None, "false"),
        (invalid_arg("bad"), 400, None, None),
        (
            invalid_arg("This model's maximum context length is 8 tokens"),
            400,
            "context_length_exceeded",
            None,
        ),
        (Failure(ErrorCode.UNAVAILABLE, "full", retry_after_s=2).error(), 503, "overloaded", None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_before_the_first_response_is_the_status(
    asking: Callable[..., Ask], failure: InferError, status: int, code: str, retries: str | None, stream: bool
) -> None:
    found = asking(TextService(of(failure)))(COMPLETIONS, COMPLETION | {"stream": stream})
    assert (found.status, found.document["error"]["code"]) == (status, code)
    assert found.document["detail"] == failure.message
    assert found.headers.get("x-should-retry") == retries


def test_a_later_failure_is_an_event_and_cancels_the_others(asking: Callable[..., Ask]) -> None:
    pieces: list[list[Piece]] = [["a", internal("it broke")], []]
    service = TextService(lambda request: pieces.pop(0))
    found = asking(service)(CHATS, CHAT | STREAM | {"n": 2})
    assert found.status == 200
    assert found.events[-2]["error"]["message"] == "it broke"
    assert service.calls[1].cancelled


BAD: list[tuple[str, dict[str, Any], str | None]] = [
    (COMPLETIONS, {"n": 10**9}, "n"),
    (COMPLETIONS, {"prompt": ["a"] * 100, "n": 2}, "n"),
    (COMPLETIONS, {"prompt": ["a"] * 129}, "prompt"),
    (COMPLETIONS, {"prompt": [[1, 2]]}, "prompt"),
    (COMPLETIONS, {"prompt": ""}, "prompt"),
    (COMPLETIONS, {"prompt": 7}, "prompt"),
    (COMPLETIONS, {"prompt": None}, "prompt"),
    (COMPLETIONS, {"best_of": 2}, "best_of"),
    (COMPLETIONS, {"suffix": "x"}, "suffix"),
    (COMPLETIONS, {"logprobs": 5}, "logprobs"),
    (COMPLETIONS, {"temperature": 3}, "temperature"),
    (COMPLETIONS, {"temperature": "1"}, "temperature"),
    (COMPLETIONS, {"max_tokens": 0}, "max_tokens"),
    (COMPLETIONS, {"stop": ["x"] * 17}, "stop"),
    (COMPLETIONS, {"stop": "x" * (1 << 20)}, "stop"),
    (COMPLETIONS, {"logit_bias": {"a": 1}}, "logit_bias"),
    (COMPLETIONS, {"logit_bias": {"1": 1}}, "logit_bias"),
    (COMPLETIONS, {"stream_options": {"include_usage": True}}, "stream_options"),
    (COMPLETIONS, {"colour": "red"}, "colour"),
    (COMPLETIONS, {"stream": "yes"}, "stream"),
    (CHATS, {"messages": []}, "messages"),
    (CHATS, {"messages": [{"role": "user"}]}, "messages[0].content"),
    (CHATS, {"messages": [{"role": "king", "content": ""}]}, "messages[0].role"),
    (
        CHATS,
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[0].content[0].type",
    ),
    (CHATS, {"functions": []}, "functions"),
    (CHATS, {"modalities": ["audio"]}, "modalities"),
    (CHATS, {"top_logprobs": 2}, "top_logprobs"),
    (CHATS, {"top_logprobs": 0}, "top_logprobs"),
    (CHATS, {"chat_template": "x"}, "chat_template"),
    (CHATS, {"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs.tokenize"),
    (CHATS, {"response_format": {"type": "json_object"}}, "response_format"),
    (CHATS, {"response_format": {"type": "xml"}}, "response_format.type"),
]


@pytest.mark.parametrize(("path", "change", "param"), BAD)
def test_a_wrong_field_is_named(
    asking: Callable[..., Ask], path: str, change: dict[str, Any], param: str | None
) -> None:
    service = TextService(of("a"))
    found = asking(service)(path, (COMPLETION if path == COMPLETIONS else CHAT) | change)
    assert found.status == 400, found.body
    error = found.document["error"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert service.seen == [] and len(found.body) < 1000


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"nul", b'{"model": "\xff"}', b"[" * 100_000, b'{"a":' * 1000]
)
def test_a_body_that_is_no_object_is_refused(asking: Callable[..., Ask], body: bytes) -> None:
    found = asking(TextService(of("a")))(COMPLETIONS, body)
    assert (found.status, found.document["error"]["type"]) == (400, "invalid_request_error")


def test_a_body_that_is_too_large_is_refused_as_by_triton(asking: Callable[..., Ask]) -> None:
    asked = asking(TextService(of("a")), http_max_input_size=100)
    found = asked(COMPLETIONS, COMPLETION | {"prompt": "a" * 200})
    assert (found.status, found.document["error"]["code"]) == (413, "content_too_large")


def test_unknown_models_and_tasks_are_told_apart(asking: Callable[..., Ask]) -> None:
    service = TextService(of("a"))
    service.config = IDENTITY
    asked = asking(service)
    assert asked(COMPLETIONS, COMPLETION | {"model": "gpt"}).status == 404
    found = asked(COMPLETIONS, COMPLETION)
    assert (found.status, found.document["error"]["code"]) == (400, "model_not_supported")


def test_a_chat_of_a_model_that_takes_text_alone_is_rendered(
    asking: Callable[..., Ask], tmp_path: Path
) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant]")
    config = TEXT.replace("messages", "other")
    service = TextService(of("yes"), config)
    asked = asking(service, chat_template=str(file))
    assert asked(CHATS, CHAT).document["choices"][0]["message"]["content"] == "yes"
    assert inputs(service.seen[0])["prompt"] == "[user] say\n[assistant]"
    without = asking(TextService(of("yes"), config))(CHATS, CHAT)
    assert (without.status, without.document["error"]["code"]) == (400, "model_not_supported")


TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def test_calls_of_tools_are_taken_out_of_a_text(asking: Callable[..., Ask]) -> None:
    pieces = (
        "Let me ",
        "see. <tool_",
        'call>{"name": "weather", ',
        '"arguments": {"at": "D',
        'allas"}}</tool_call>',
    )
    service = TextService(of(*pieces), VLLM)
    asked = asking(service, tool_call_parser="hermes")
    body = CHAT | {"tools": [TOOL]}
    (choice,) = asked(CHATS, body).document["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"].strip() == "Let me see."
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"at": "Dallas"}'}
    assert json.loads(inputs(service.seen[0])["messages"])["tools"] == [TOOL]
    deltas = [chunk["choices"][0]["delta"] for chunk in asked(CHATS, body | STREAM).events[:-1]]
    calls = [each for delta in deltas for each in delta.get("tool_calls", ())]
    assert "".join(each["function"].get("arguments", "") for each in calls) == '{"at": "Dallas"}'
    assert [each["function"]["name"] for each in calls if "name" in each["function"]] == ["weather"]


def test_a_tool_that_must_be_called_guides_the_text(asking: Callable[..., Ask]) -> None:
    service = TextService(of('{"at": ', '"x"}'), VLLM)
    body = CHAT | {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "weather"}}}
    (choice,) = asking(service)(CHATS, body).document["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"at": "x"}'}
    sampling = json.loads(inputs(service.seen[0])["sampling_parameters"])
    assert json.loads(sampling["structured_outputs"]) == {"json": {"type": "object"}}


def test_calls_that_are_too_long_end_the_text(asking: Callable[..., Ask]) -> None:
    service = TextService(
        of('<tool_call>{"name": "weather", "arguments": {"a": "', *["x" * 100] * 50, '"}}'), VLLM
    )
    asked = asking(service, tool_call_parser="hermes", max_tool_call_parse_bytes=1000)
    found = asked(CHATS, CHAT | {"tools": [TOOL]} | STREAM)
    assert found.events[-2]["choices"][0]["finish_reason"] == "length"
    assert len(found.body) < 40_000


def test_probabilities_are_reported(asking: Callable[..., Ask]) -> None:
    report = json.dumps([{"7": {"logprob": -0.5, "rank": 1, "decoded_token": "a"}}])
    service = TextService(of({"text_output": "a", "logprobs": report, "finish_reason": "stop"}), VLLM)
    asked = asking(service)
    (choice,) = asked(CHATS, CHAT | {"logprobs": True, "top_logprobs": 1}).document["choices"]
    assert choice["logprobs"]["content"][0]["token"] == "a"
    (choice,) = asked(COMPLETIONS, COMPLETION | {"logprobs": 1}).document["choices"]
    assert choice["logprobs"]["tokens"] == ["a"]
    chunks = asked(COMPLETIONS, COMPLETION | {"logprobs": 1} | STREAM).events[:-1]
    assert chunks[0]["choices"][0]["logprobs"]["token_logprobs"] == [-0.5]
    assert json.loads(inputs(service.seen[0])["sampling_parameters"])["logprobs"] == 1
    (choice,) = asked(COMPLETIONS, COMPLETION | {"logprobs": 0}).document["choices"]
    assert (choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"]) == ([-0.5], [{}])
