"""`/v1/responses` with the `openai` package: its types, its helpers, and errors of what is not kept."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from app.core.errors import internal
from tests.unit.app.ingress.openai.package import unknown_fields
from tests.unit.app.ingress.openai.test_management import ask
from tests.unit.app.ingress.openai.text_models import VLLM, Reply, Script, TextService, inputs, of, post
from tests.unit.app.ingress.running_fronts import Fronts

PATH = "/v1/responses"
ASKED = {"model": "identity", "input": "say"}
COUNTED = of(
    {"text_output": "one ", "num_input_tokens": 3, "num_output_tokens": 1, "finish_reason": "None"},
    {"text_output": "two", "num_input_tokens": 3, "num_output_tokens": 1, "finish_reason": "stop"},
)
CALL = '<tool_call>{"name": "weather", "arguments": {"at": "D"}}</tool_call>'
REPORT = json.dumps(
    [{"7": {"logprob": -0.5, "rank": 2, "decoded_token": "a "}, "8": {"logprob": -0.1, "rank": 1}}]
)
RICH = of(
    {"text_output": f"a {CALL[:40]}", "logprobs": REPORT, "finish_reason": "None", "num_cached_tokens": 2},
    {"text_output": CALL[40:], "logprobs": REPORT, "finish_reason": "stop", "num_input_tokens": 3},
)
TOOLS: Any = [{"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}]
Serve = Callable[..., tuple[openai.OpenAI, TextService, int]]


@pytest.fixture
def serve(fronts: Fronts) -> Iterator[Serve]:
    """Opens a front over a script; returns a client, the model and the port."""
    with ExitStack() as stack:

        def start(script: Script = COUNTED) -> tuple[openai.OpenAI, TextService, int]:
            service = TextService(script, VLLM)
            running = stack.enter_context(
                fronts(service=service, allow_openai=True, tool_call_parser="hermes")
            )
            url = f"http://127.0.0.1:{running.http_port}/v1"
            client = stack.enter_context(openai.OpenAI(base_url=url, api_key="none"))
            return client, service, running.http_port

        yield start


def messages(service: TextService, at: int = 0) -> Any:
    return json.loads(inputs(service.seen[at])["messages"])["messages"]


def events(reply: Reply) -> list[Any]:
    found = []
    for block in reply.body.decode().split("\n\n")[:-1]:
        event, data = block.split("\n")
        document = json.loads(data.removeprefix("data: "))
        assert event == f"event: {document['type']}"
        found.append(document)
    return found


def test_a_text_is_answered(serve: Serve) -> None:
    client, service, _ = serve()
    found = client.responses.create(model="identity", input="say", instructions="be short", temperature=0.5)
    assert found.output_text == "one two" and found.status == "completed" and found.id.startswith("resp_")
    assert found.usage is not None and (found.usage.input_tokens, found.usage.total_tokens) == (3, 5)
    assert (found.instructions, found.temperature) == ("be short", 0.5)
    assert messages(service) == [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "say"},
    ]
    assert json.loads(inputs(service.seen[0])["sampling_parameters"])["temperature"] == 0.5


def test_a_conversation_goes_on_with_the_items_of_an_answer(serve: Serve) -> None:
    client, service, _ = serve(RICH)
    given: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "weather?"}]}]
    first = client.responses.create(model="identity", input=given, tools=TOOLS)
    assert [item.type for item in first.output] == ["message", "function_call"]
    call = first.output[1]
    assert call.type == "function_call" and (call.name, call.arguments) == ("weather", '{"at": "D"}')
    given += [item.to_dict() for item in first.output]
    given.append({"type": "function_call_output", "call_id": call.call_id, "output": "20"})
    client.responses.create(model="identity", input=given, tools=TOOLS)
    function = {"name": "weather", "arguments": {"at": "D"}}
    assert messages(service, 1) == [
        {"role": "user", "content": "weather?"},
        {
            "role": "assistant",
            "content": "a ",
            "tool_calls": [{"type": "function", "function": function, "id": call.call_id}],
        },
        {"role": "tool", "tool_call_id": call.call_id, "content": "20"},
    ]


def test_the_helper_for_streams_gathers_all(serve: Serve) -> None:
    client, _, _ = serve(RICH)
    with client.responses.stream(model="identity", input="say", tools=TOOLS) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output_text == "a " and final.usage is not None and final.usage.input_tokens == 3
    (call,) = [item for item in final.output if item.type == "function_call"]
    assert call.arguments == '{"at": "D"}' and call.status == "completed"
    assert kinds == [
        *("response.created", "response.in_progress"),
        *("response.output_item.added", "response.content_part.added", "response.output_text.delta"),
        *("response.output_text.done", "response.content_part.done", "response.output_item.done"),
        *("response.output_item.added", "response.function_call_arguments.delta"),
        *("response.function_call_arguments.done", "response.output_item.done", "response.completed"),
    ]


class Point(BaseModel):
    x: int
    y: int


@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_is_parsed(serve: Serve, streamed: bool) -> None:
    client, service, _ = serve(of({"text_output": '{"x": 1, "y": 2}', "finish_reason": "stop"}))
    if streamed:
        with client.responses.stream(model="identity", input="say", text_format=Point) as stream:
            found = stream.get_final_response()
    else:
        found = client.responses.parse(model="identity", input="say", text_format=Point)
    assert found.output_parsed == Point(x=1, y=2)
    guide = json.loads(json.loads(inputs(service.seen[0])["sampling_parameters"])["structured_outputs"])
    assert set(guide["json"]["properties"]) == {"x", "y"}


RICH_BODY = ASKED | {
    "tools": TOOLS,
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 2,
    "metadata": {"a": "b"},
    "reasoning": {"effort": "low"},
}


@pytest.mark.parametrize("script", [COUNTED, RICH, of({"text_output": "", "finish_reason": "length"})])
@pytest.mark.parametrize("body", [ASKED, RICH_BODY])
def test_objects_have_the_types_of_the_package(serve: Serve, script: Script, body: dict[str, Any]) -> None:
    _, _, port = serve(script)
    whole = post(port, PATH, body)
    streamed = events(post(port, PATH, body | {"stream": True}))
    answer = TypeAdapter(Response).validate_python(whole.document, strict=True)
    assert not unknown_fields(answer), unknown_fields(answer)
    for number, each in enumerate(streamed):
        event: Any = TypeAdapter(ResponseStreamEvent).validate_python(each, strict=True)
        assert event.sequence_number == number and not unknown_fields(event)
    last = streamed[-1]["response"]
    assert last["status"] == whole.document["status"] and last["usage"] == whole.document["usage"]
    assert [_plain(item) for item in last["output"]] == [_plain(item) for item in whole.document["output"]]


def _plain(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in ("id", "call_id")}


def test_a_text_that_is_cut_off_is_incomplete(serve: Serve) -> None:
    client, service, _ = serve(of({"text_output": "on", "finish_reason": "length"}))
    found = client.responses.create(model="identity", input="say", max_output_tokens=2)
    assert found.status == "incomplete" and found.incomplete_details is not None
    assert found.incomplete_details.reason == "max_output_tokens"
    assert json.loads(inputs(service.seen[0])["sampling_parameters"])["max_tokens"] == 2
    kinds = [event.type for event in client.responses.create(model="identity", input="say", stream=True)]
    assert kinds[-1] == "response.incomplete"


def test_a_failure_before_the_first_piece_is_a_status_and_later_an_event(serve: Serve) -> None:
    client, _, _ = serve(of(internal("it broke")))
    with pytest.raises(openai.InternalServerError, match="it broke"):
        client.responses.create(model="identity", input="say", stream=True)
    client, _, _ = serve(of("one", internal("it broke")))
    last = list(client.responses.create(model="identity", input="say", stream=True))[-1]
    assert last.type == "response.failed" and last.response.error is not None
    assert (last.response.error.code, last.response.error.message) == ("server_error", "it broke")


def test_what_would_have_to_be_kept_is_not_there(serve: Serve) -> None:
    client, _, port = serve()
    with pytest.raises(openai.BadRequestError, match="send the whole conversation as 'input'") as error:
        client.responses.create(model="identity", input="say", previous_response_id="resp_1")
    assert error.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError, match="responses are not kept here"):
        client.responses.retrieve("resp_1")
    assert ask(port, "GET", PATH).status == 405


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "name": "weather"},
        "required",
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]},
    ],
)
def test_a_call_is_forced(serve: Serve, choice: Any) -> None:
    named = isinstance(choice, dict) and choice["type"] == "function"
    text = '{"at": "D"}' if named else '{"name": "weather", "arguments": {"at": "D"}}'
    client, service, _ = serve(of({"text_output": text, "finish_reason": "stop"}))
    found = client.responses.create(model="identity", input="say", tools=TOOLS, tool_choice=choice)
    (call,) = found.output
    assert call.type == "function_call" and call.arguments == '{"at": "D"}'
    assert "structured_outputs" in json.loads(inputs(service.seen[0])["sampling_parameters"])
