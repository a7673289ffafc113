"""Chats, vectors, structured texts and shared beginnings, over the served model."""

import json
import re
from typing import Any

import numpy as np
import pytest

from app.core.errors import ErrorCode
from tests.backends.llm.serving import Load, ask, asked, outputs, text_of
from tests.unit.backend_harness import Served


def chat(**fields: Any) -> str:
    return json.dumps(
        {"messages": [{"role": "user", "content": "The "}, {"role": "user", "content": "old"}], **fields}
    )


def test_chat_is_rendered_by_the_template_of_the_model(small: Served, expected: dict[str, str]) -> None:
    call = asked(small, messages=chat(), return_num_input_tokens=True)
    found = outputs(call.wait()[0])
    assert (found["text_output"], found["num_input_tokens"]) == (expected["The old"], len("The old"))


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("[]", "messages must be a JSON object with a list 'messages'"),
        (chat(arguments={"tokenize": True}), "arguments of a chat template may not be 'tokenize'"),
        (
            json.dumps({"messages": [{"role": "endless", "content": ""}]}),
            "the chat template failed: it takes longer than 5 s",
        ),
    ],
)
def test_chat_that_is_refused_harms_no_other_text(
    small: Served, expected: dict[str, str], messages: str, message: str
) -> None:
    refused = asked(small, messages=messages)
    assert text_of(ask(small, "The old", exclude_input_in_output=True)) == expected["The old"]
    (response,) = refused.wait()
    assert response.failure is not None and response.failure.code is ErrorCode.INVALID_ARG
    assert response.failure.message == f"Error generating stream: {message}"


def test_requests_that_are_refused_harm_no_running_text(small: Served, expected: dict[str, str]) -> None:
    hostile: list[tuple[str, dict[str, Any]]] = [
        ("a", {"structured_outputs": {"regex": "(a"}}),
        ("a", {"structured_outputs": {"json": {"type": "nix"}}}),
        ("a", {"structured_outputs": {"grammar": "start: nobody"}}),
        ("word " * 99, {}),
    ]
    running, refused = {}, []
    for prompt in expected:
        running[prompt] = ask(small, prompt, stream=True, exclude_input_in_output=True)
        refused += [ask(small, text, parameters) for text, parameters in hostile]
    assert {prompt: text_of(call) for prompt, call in running.items()} == expected
    for call in refused:
        (response,) = call.wait()
        assert response.failure is not None and response.failure.code is ErrorCode.INVALID_ARG


def test_vectors(small: Served) -> None:
    call = asked(small, embedding_request=json.dumps({"input": "The old"}), return_num_input_tokens=True)
    found = outputs(call.wait()[0])
    vector = json.loads(found["text_output"])
    assert (len(vector), found["num_input_tokens"]) == (64, 7)
    assert np.linalg.norm(vector) == pytest.approx(1)
    request = {"input": [*b"The old"], "pooling_params": {"dimensions": [8]}}
    short = json.loads(outputs(asked(small, embedding_request=json.dumps(request)).wait()[0])["text_output"])
    assert len(short) == 8


def test_structured_text(small: Served) -> None:
    parameters = {"structured_outputs": {"regex": "[0-9]{3} days"}}
    (response,) = ask(
        small, "He had gone ", parameters, exclude_input_in_output=True, return_finish_reason=True
    ).wait()
    found = outputs(response)
    assert re.fullmatch("[0-9]{3} days", found["text_output"]) and found["finish_reason"] == "stop"
    refused = ask(small, "a", {"structured_outputs": {"regex": "(a"}})
    assert "structured_outputs is not usable" in refused.error


def test_shared_beginning(load: Load) -> None:
    served = load("small", {"model": "weights"})
    prompt = "The old man fished alone. " * 3
    found = [outputs(ask(served, prompt, return_num_cached_tokens=True).wait()[0]) for _ in range(2)]
    assert [each["num_cached_tokens"] for each in found] == [0, 64]
    assert found[0]["text_output"] == found[1]["text_output"]
    other = asked(served, text_input=prompt, cache_salt="green", return_num_cached_tokens=True)
    assert outputs(other.wait()[0])["num_cached_tokens"] == 0


def test_text_does_not_end_before_enough_tokens(small: Served, expected: dict[str, str]) -> None:
    parameters = {"stop": ["m"], "min_tokens": 9}
    text = text_of(ask(small, "The old", parameters, exclude_input_in_output=True))
    assert len(text) >= 8 and expected["The old"].startswith(text)


def test_biased_tokens(small: Served) -> None:
    parameters = {"logit_bias": {"33": 100}, "max_tokens": 3}
    text = text_of(ask(small, "The old", parameters, exclude_input_in_output=True))
    assert len(text) == 3 and len({*text}) == 1
