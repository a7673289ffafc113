"""Prompts that begin alike meet at one replica, unless it has more than its share of them."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.prompt_prefixes import first_with_room, prefix_of
from app.core.tensors import InferRequest, Tensor

SYSTEM = "You are a helpful assistant. " * 20


def asked(parameters: dict[str, Any] | None = None, **texts: str) -> InferRequest:
    inputs = tuple(Tensor.from_array(name, np.array([text], np.object_)) for name, text in texts.items())
    return InferRequest("m", "", inputs, parameters=parameters or {})


def chat(*texts: str) -> InferRequest:
    return asked(messages=json.dumps({"messages": [{"role": "user", "content": text} for text in texts]}))


def test_prompts_that_begin_alike_have_one_prefix() -> None:
    assert prefix_of(asked(text_input=SYSTEM + "a")) == prefix_of(asked(text_input=SYSTEM + "b"))
    assert prefix_of(chat(SYSTEM, "a")) == prefix_of(chat(SYSTEM, "a", "b", "c"))
    assert prefix_of(asked(text_input="a")) != prefix_of(asked(text_input="b"))


def test_clients_that_share_no_cache_have_prefixes_of_their_own() -> None:
    one, other = (asked(text_input=SYSTEM, cache_salt=salt) for salt in ("one", "other"))
    assert prefix_of(one) != prefix_of(other)


def test_a_client_may_say_what_begins_alike() -> None:
    key = {"prompt_cache_key": "k"}
    assert prefix_of(asked(key, text_input="a")) == prefix_of(asked(key, text_input="b"))
    assert prefix_of(asked(key, text_input="a")) != prefix_of(asked(text_input="a"))


@pytest.mark.parametrize("request_", [asked(), asked(text_input=""), asked(other="a")])
def test_a_request_without_a_prompt_has_none(request_: InferRequest) -> None:
    assert prefix_of(request_) == ""


@pytest.mark.parametrize(
    ("loads", "place"),
    [
        ([0, 0], 0),
        ([1, 0], 0),
        ([2, 0], 1),
        ([3, 3], 0),
        ([8, 0, 0], 1),
        ([8, 8, 0], 2),
        ([8, 4, 0], 1),
        ([5], 0),
    ],
)
def test_the_first_replica_that_has_room_is_taken(loads: list[int], place: int) -> None:
    assert first_with_room(loads) == place


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20))
def test_none_gets_much_more_than_its_share(loads: list[int]) -> None:
    place = first_with_room(loads)
    assert loads[place] < 1.25 * (sum(loads) + 1) / len(loads) + 1
