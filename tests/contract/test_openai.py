"""OpenAI's API over the models of the suite, by the `openai` package and by bare HTTP."""

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.contract.conftest import Addresses
from tests.contract.wire import Wire
from tests.waiting import block_until

CHAT = "/v1/chat/completions"
Messages = Any


def messages(text: str) -> Messages:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def client(openai_address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{openai_address}/v1", api_key="none") as made:
        yield made


@pytest.fixture
def wire(openai_address: str) -> Iterator[Wire]:
    made = Wire(openai_address)
    yield made
    made.close()


def test_models_are_listed_beside_those_that_have_nothing_to_do_with_text(client: openai.OpenAI) -> None:
    found = {model.id: model for model in client.models.list()}
    assert {"words", "gpt-words", "simple"} <= found.keys()
    assert abs(found["words"].created - time.time()) < 3600


def test_a_text_in_one_piece_and_as_a_stream(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="words", prompt="one two three")
    assert whole.choices[0].text == "one two three"
    assert whole.usage is not None and whole.usage.total_tokens == 6
    stream = client.completions.create(model="gpt-words", prompt="one two three", stream=True)
    assert [chunk.choices[0].text for chunk in stream] == ["one", " two", " three", ""]


def test_a_chat_of_a_model_that_renders_it(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="words", messages=messages("ä b"), n=2) as stream:
        final = stream.get_final_completion()
    assert [choice.message.content for choice in final.choices] == ["ä b", "ä b"]
    assert {choice.finish_reason for choice in final.choices} == {"stop"}


def test_a_response_and_the_one_after_it(client: openai.OpenAI) -> None:
    items: Any = messages("ä b")
    with client.responses.stream(model="words", input=items, instructions="repeat") as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        first = stream.get_final_response()
    assert first.output_text == "".join(deltas) == "ä b"
    items += [*[item.to_dict() for item in first.output], *messages("c")]
    second = client.responses.create(model="words", input=items)
    assert (second.output_text, second.status) == ("c", "completed")


def test_a_limit_and_a_stop_are_told_apart(client: openai.OpenAI) -> None:
    cut = client.chat.completions.create(model="words", messages=messages("a b c"), max_completion_tokens=2)
    assert (cut.choices[0].message.content, cut.choices[0].finish_reason) == ("a b", "length")
    ended = client.chat.completions.create(model="words", messages=messages("a b c"), stop=["b"])
    assert (ended.choices[0].message.content, ended.choices[0].finish_reason) == ("a ", "stop")


def test_a_stream_has_the_text_of_generate_stream(client: openai.OpenAI, server: Addresses) -> None:
    text = "x äö 🎉 a\nb " + " ".join(map(str, range(200)))
    other = Wire(server.http)
    body = json.dumps({"prompt": text}).encode()
    events = other.send("POST", "/v2/models/words/generate_stream", body, {}).body.split(b"\n\n")
    other.close()
    generated = [json.loads(event[6:])["text"] for event in events if event]
    stream = client.completions.create(model="words", prompt=text, stream=True, max_tokens=4096)
    assert [chunk.choices[0].text for chunk in stream][:-1] == generated


def test_a_model_that_fails_is_asked_once(client: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError, match="it was told to fail"):
        client.completions.create(model="words", prompt="fail")
    stream = client.completions.create(model="words", prompt="one fail", stream=True)
    assert next(stream).choices[0].text == "one"
    with pytest.raises(openai.APIError, match="it was told to fail"):
        next(stream)


def test_a_client_that_leaves_cancels_its_requests(client: openai.OpenAI) -> None:
    def cancelled() -> int:
        return int(client.completions.create(model="words", prompt="cancelled").choices[0].text)

    before = cancelled()
    body: Any = {"delay_ms": 20}
    stream = client.completions.create(
        model="words", prompt="a " * 1000, n=2, stream=True, max_tokens=4096, extra_body=body
    )
    next(stream)
    stream.close()
    block_until(lambda: cancelled() == before + 2)


def test_many_streams_at_once(openai_address: str) -> None:
    async def ask(client: openai.AsyncOpenAI, number: int) -> str:
        stream = await client.chat.completions.create(
            model="words", messages=messages(f"{number} " * 20), stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"http://{openai_address}/v1", api_key="none") as client:
            return await asyncio.gather(*(ask(client, number) for number in range(32)))

    assert asyncio.run(ask_all()) == [f"{number} " * 20 for number in range(32)]


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/models", "/v1/nothing"])
def test_anything_else_is_refused_in_the_form_of_openai(wire: Wire, path: str) -> None:
    for body in (b"", b"{", b'{"model": "words"}', b'{"model": "nobody", "prompt": "a"}', b'{"n": 1e99}'):
        answer = wire.send("POST", path, body, {})
        assert 400 <= answer.status < 500
        assert answer.json["error"]["message"] == answer.json["detail"]
        assert answer.headers["x-request-id"]
    assert wire.is_same_connection()
