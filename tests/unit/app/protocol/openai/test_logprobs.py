"""Reports of vLLM's backend in the shapes of OpenAI."""

import json
from typing import Any

import pytest
from openai.types.chat.chat_completion import ChoiceLogprobs
from openai.types.completion_choice import Logprobs
from pydantic import TypeAdapter

from app.core.errors import InferError
from app.protocol.openai.logprobs import Drawn, Token, chat_logprobs, completion_logprobs, read_logprobs


def candidate(text: str, logprob: float, rank: int) -> dict[str, Any]:
    return {"decoded_token": text, "logprob": logprob, "rank": rank}


REPORT = json.dumps(
    [
        # The third most probable was drawn: it is the first key.
        {"9": candidate(" ü", -3.5, 3), "4": candidate(" a", -0.5, 1), "5": candidate(" b", -1, 2)},
        {"7": candidate("!", 0.0, 1), "8": candidate("?", -float("inf"), 2)},
    ]
)


def test_the_token_that_was_drawn_is_the_first_key_whatever_its_rank() -> None:
    first, second = read_logprobs(REPORT, 2)
    assert first == Drawn(Token(" ü", -3.5), [Token(" a", -0.5), Token(" b", -1.0)])
    assert second == Drawn(Token("!", 0.0), [Token("!", 0.0), Token("?", -9999.0)])


def test_only_so_many_are_reported_as_were_asked_for() -> None:
    assert [one.top for one in read_logprobs(REPORT, 0)] == [[], []]
    assert [len(one.top) for one in read_logprobs(REPORT, 1)] == [1, 1]
    assert [len(one.top) for one in read_logprobs(REPORT, 20)] == [3, 2]


def test_chat_has_bytes_and_is_valid_by_the_types_of_openai() -> None:
    made = chat_logprobs(read_logprobs(REPORT, 2))
    found = TypeAdapter(ChoiceLogprobs).validate_python(made, strict=True)
    assert found.content is not None
    assert found.content[0].bytes == [32, 195, 188]
    assert [each.token for each in found.content[0].top_logprobs] == [" a", " b"]


def test_part_of_a_character_has_no_bytes() -> None:
    """Those of what stands for it would be joined to another text."""
    made = chat_logprobs([Drawn(Token("\ufffd", -1), [Token("\ufffd", -1)])])
    assert made is not None and made["content"][0]["bytes"] is None
    assert made["content"][0]["top_logprobs"][0]["bytes"] is None


def test_completion_has_offsets_and_is_valid_by_the_types_of_openai() -> None:
    made = completion_logprobs(read_logprobs(REPORT, 2), 10)
    found = TypeAdapter(Logprobs).validate_python(made, strict=True)
    assert found.text_offset == [10, 12]
    assert found.tokens == [" ü", "!"]
    assert found.token_logprobs == [-3.5, 0.0]
    assert found.top_logprobs == [{" a": -0.5, " b": -1.0}, {"!": 0.0, "?": -9999.0}]


def test_of_two_tokens_with_one_text_the_more_probable_counts() -> None:
    drawn = [Drawn(Token("x", -1), [Token("\ufffd", -1), Token("\ufffd", -2)])]
    made = completion_logprobs(drawn, 0)
    assert made is not None
    assert made["top_logprobs"] == [{"\ufffd": -1}]


@pytest.mark.parametrize("report", ["", "null", "[]", "[null]"])
def test_no_report_has_no_tokens(report: str) -> None:
    assert read_logprobs(report, 3) == []
    assert chat_logprobs([]) is completion_logprobs([], 0) is None


@pytest.mark.parametrize(
    "report",
    [
        "{",
        "3",
        "[3]",
        '["a"]',
        '[{"1": 2}]',
        '[{"1": {"rank": 1}}]',
        '[{"1": {"logprob": 0, "rank": 1e999}}]',
        "[" * 100_000,
    ],
)
def test_a_report_of_another_form_is_the_models_failure(report: str) -> None:
    with pytest.raises(InferError, match="report of log probabilities"):
        read_logprobs(report, 3)
