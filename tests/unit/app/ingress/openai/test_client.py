"""The `openai` package as a client: its types, strictly, and what it makes of streams and errors."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import openai
import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel, TypeAdapter

from app.core.errors import internal
from tests.unit.app.ingress.openai.package import unknown_fields
from tests.unit.app.ingress.openai.text_models import VLLM, Script, TextService, inputs, of, post
from tests.unit.app.ingress.running_fronts import Fronts

MESSAGES: Any = [{"role": "user", "content": "say"}]
COUNTED = of(
    {"text_output": "one ", "num_input_tokens": 3, "num_output_tokens": 1, "finish_reason": "None"},
    {"text_output": "two", "num_input_tokens": 3, "num_output_tokens": 1, "finish_reason": "stop"},
)


@pytest.fixture
def serve(fronts: Fronts) -> Iterator[Callable[..., int]]:
    """Opens a front over a script; returns its port."""
    with ExitStack() as stack:

        def start(script: Script, config: str = VLLM) -> int:
            service = TextService(script, config)
            return stack.enter_context(fronts(service=service, allow_openai=True)).http_port

        yield start


def client(port: int, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", **options)


def test_a_chat(serve: Callable[..., int]) -> None:
    with client(serve(COUNTED)) as asked:
        found = asked.chat.completions.create(model="identity", messages=MESSAGES)
        assert found.choices[0].message.content == "one two"
        assert found.usage is not None and found.usage.total_tokens == 5
        assert [model.id for model in asked.models.list()] == ["identity"]
        assert asked.models.retrieve("identity").owned_by == "Triton Inference Server"


def test_a_stream_of_a_completion(serve: Callable[..., int]) -> None:
    with client(serve(COUNTED)) as asked:
        chunks = list(asked.completions.create(model="identity", prompt="say", stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "one two"


def test_the_helper_for_streams_gathers_all(serve: Callable[..., int]) -> None:
    with (
        client(serve(COUNTED)) as asked,
        asked.chat.completions.stream(
            model="identity", messages=MESSAGES, stream_options={"include_usage": True}
        ) as stream,
    ):
        texts = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert texts == ["", "one ", "two"]
    assert final.choices[0].message.content == "one two"
    assert final.choices[0].finish_reason == "stop"
    assert final.usage is not None and final.usage.completion_tokens == 2


def test_many_clients_at_once(serve: Callable[..., int]) -> None:
    port = serve(lambda request: [inputs(request)["text_input"].upper()])

    async def ask(client: openai.AsyncOpenAI, number: int) -> str:
        stream = await client.completions.create(model="identity", prompt=f"say {number}", stream=True)
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
            return await asyncio.gather(*(ask(client, number) for number in range(20)))

    assert asyncio.run(ask_all()) == [f"SAY {number}" for number in range(20)]


class Point(BaseModel):
    x: int
    y: int


def test_an_answer_is_parsed(serve: Callable[..., int]) -> None:
    seen: list[Any] = []

    def script(request: Any) -> list[Any]:
        seen.append(json.loads(inputs(request)["sampling_parameters"]))
        return [{"text_output": '{"x": 1, "y": 2}', "finish_reason": "stop"}]

    with client(serve(script)) as asked:
        found = asked.chat.completions.parse(model="identity", messages=MESSAGES, response_format=Point)
    assert found.choices[0].message.parsed == Point(x=1, y=2)
    schema = json.loads(seen[0]["structured_outputs"])["json"]
    assert set(schema["properties"]) == {"x", "y"} and schema["additionalProperties"] is False


def test_errors_are_those_of_the_package(serve: Callable[..., int]) -> None:
    tried = []

    def script(request: Any) -> list[Any]:
        tried.append(request)
        return [internal("it broke")]

    with client(serve(script)) as asked:
        with pytest.raises(openai.NotFoundError, match="Unknown model: gpt"):
            asked.chat.completions.create(model="gpt", messages=MESSAGES)
        with pytest.raises(openai.BadRequestError) as wrong:
            asked.chat.completions.create(model="identity", messages=MESSAGES, temperature=3)
        assert wrong.value.param == "temperature"
        with pytest.raises(openai.InternalServerError, match="it broke"):
            asked.chat.completions.create(model="identity", messages=MESSAGES)
    assert len(tried) == 1, "a model that fails is not asked again"


def test_a_failure_in_a_stream_is_raised(serve: Callable[..., int]) -> None:
    with client(serve(of("one", internal("it broke")))) as asked:
        stream = asked.chat.completions.create(model="identity", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="it broke"):
            list(stream)


CHAT = {"model": "identity", "messages": MESSAGES}
PROMPT = {"model": "identity", "prompt": "say", "n": 2}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize("more", [{}, {"stream": True}, USAGE, {"n": 3}, {"n": 2, **USAGE}])
@pytest.mark.parametrize(
    ("path", "body", "whole", "chunk"),
    [
        ("/v1/chat/completions", CHAT, ChatCompletion, ChatCompletionChunk),
        ("/v1/completions", PROMPT, Completion, Completion),
    ],
)
def test_objects_have_the_types_of_the_package(
    serve: Callable[..., int], more: dict[str, Any], path: str, body: dict[str, Any], whole: Any, chunk: Any
) -> None:
    found = post(serve(COUNTED), path, body | more)
    objects = found.events[:-1] if more.get("stream") else [found.document]
    for each in objects:
        if chunk is Completion and more.get("stream"):  # null in all servers' chunks, but not in the type
            for choice in each["choices"]:
                choice["finish_reason"] = choice["finish_reason"] or "stop"
        strict = chunk if more.get("stream") else whole
        checked = TypeAdapter(strict).validate_python(each, strict=True)
        assert not unknown_fields(checked), unknown_fields(checked)


CALL = '<tool_call>{"name": "weather", "arguments": {"at": "D"}}</tool_call>'
REPORT = json.dumps(
    [{"7": {"logprob": -0.5, "rank": 2, "decoded_token": "a"}, "8": {"logprob": -0.1, "rank": 1}}]
)
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
RICH = of(
    {"text_output": f"a {CALL[:40]}", "logprobs": REPORT, "finish_reason": "None", "num_cached_tokens": 2},
    {"text_output": CALL[40:], "logprobs": REPORT, "finish_reason": "stop", "num_input_tokens": 3},
)


@pytest.mark.parametrize("more", [{}, USAGE])
def test_calls_and_probabilities_have_the_types_of_the_package(fronts: Fronts, more: dict[str, Any]) -> None:
    body = CHAT | {"tools": TOOLS, "logprobs": True, "top_logprobs": 2} | more
    service = TextService(RICH, VLLM)
    with fronts(service=service, allow_openai=True, tool_call_parser="hermes") as running:
        found = post(running.http_port, "/v1/chat/completions", body)
        plain = post(running.http_port, "/v1/completions", PROMPT | {"logprobs": 2})
    objects = found.events[:-1] if more else [found.document]
    for each in objects:
        kind = ChatCompletionChunk if more else ChatCompletion
        assert not unknown_fields(TypeAdapter(kind).validate_python(each, strict=True))
    assert not unknown_fields(TypeAdapter(Completion).validate_python(plain.document, strict=True))
    assert objects[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


def test_models_have_the_type_of_the_package(serve: Callable[..., int]) -> None:
    with client(serve(COUNTED)) as asked:
        raw = json.loads(asked.models.with_raw_response.list().text)["data"]
    assert all(TypeAdapter(Model).validate_python(each, strict=True) for each in raw)


def test_choices_begin_in_order_whichever_has_a_text_first(serve: Callable[..., int]) -> None:
    pieces: list[list[Any]] = [[{"text_output": "", "finish_reason": "stop"}], [{"text_output": "late"}]]
    port = serve(lambda request: pieces.pop())
    with (
        client(port) as asked,
        asked.chat.completions.stream(model="identity", messages=MESSAGES, n=2) as stream,
    ):
        final = stream.get_final_completion()
    assert [choice.message.content for choice in final.choices] == ["late", ""]
