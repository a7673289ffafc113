"""The choice of tokens: rows of one step are chosen from together as each alone."""

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from backends.packaged.llm.engine import choice
from backends.packaged.llm.engine.choice import Choice, choose, scores
from backends.packaged.llm.engine.sampling import SamplingParameters

CPU = torch.device("cpu")


def made(prompt: tuple[int, ...] = (), ends: tuple[int, ...] = (), **parameters: Any) -> Choice:
    return Choice(SamplingParameters(**parameters), prompt, CPU, ends)


def drawn(logits: "torch.Tensor", **parameters: Any) -> set[int]:
    """Return the tokens of a thousand draws."""
    choices = [made(seed=seed, **parameters) for seed in range(1000)]
    return {*choose(logits.expand(1000, -1), choices)}


def chosen(logits: torch.Tensor, choices: list[Choice]) -> list[int]:
    """Choose tokens, of which the choices learn."""
    tokens = choose(logits, choices)
    for each, token in zip(choices, tokens, strict=True):
        each.chosen(token)
    return tokens


def test_draws_are_as_frequent_as_tokens_are_probable() -> None:
    logits = torch.tensor([0.1, 0.2, 0.7]).log()
    tokens = choose(logits.expand(4000, -1), [made(seed=seed) for seed in range(4000)])
    assert [tokens.count(token) / 4000 for token in range(3)] == pytest.approx([0.1, 0.2, 0.7], abs=0.03)


@pytest.mark.parametrize("first", [2, 1024])
@pytest.mark.parametrize(
    ("parameters", "tokens"),
    [
        ({}, {0, 1, 2, 3}),
        ({"top_k": 2}, {3, 2}),
        ({"top_k": 1, "temperature": 50.0}, {3}),
        ({"top_p": 0.7}, {3, 2}),
        ({"top_p": 0.59}, {3}),
        ({"top_p": 0.95}, {3, 2, 1}),
        ({"min_p": 0.2}, {3, 2}),
        ({"top_k": 3, "top_p": 0.99}, {3, 2, 1}),
        ({"temperature": 0.0}, {3}),
        ({"temperature": 0.0, "logit_bias": {0: 100.0}}, {0}),
        ({"logit_bias": {3: -100.0, 2: -100.0}}, {0, 1}),
    ],
)
def test_tokens_that_may_be_drawn(
    parameters: dict[str, Any], tokens: set[int], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "_FIRST", first)  # else the best suffice
    assert drawn(torch.tensor([0.05, 0.1, 0.25, 0.6]).log(), **parameters) == tokens


def test_rows_of_a_step_get_what_each_gets_alone() -> None:
    torch.manual_seed(1)
    logits = torch.randn(6, 3000)
    given: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"seed": 1},
        {"seed": 2, "top_k": 9},
        {"seed": 3, "top_p": 0.9, "repetition_penalty": 3.0},
        {"temperature": 0.0, "presence_penalty": 2.0},
        {"seed": 5, "min_p": 0.1, "temperature": 2.0},
    ]
    together, alone = ([made((1, 2), **each) for each in given] for _ in range(2))
    for _ in range(3):
        tokens = chosen(logits, together)
        assert tokens == [chosen(logits[row : row + 1], [each])[0] for row, each in enumerate(alone)]


def test_end_does_not_come_before_enough_tokens() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    one = made(ends=(1, 99), temperature=0.0, min_tokens=2)
    assert [chosen(logits, [one])[0] for _ in range(4)] == [2, 2, 1, 1]


def test_penalties_count_prompt_and_text() -> None:
    logits = torch.tensor([[2.0, 1.9, 1.0, -1.0]])
    one = made((0,), temperature=0.0, repetition_penalty=1.1)
    assert [chosen(logits, [one])[0] for _ in range(2)] == [1, 0]
    one = made((0,), temperature=0.0, frequency_penalty=0.5)
    assert [chosen(logits, [one])[0] for _ in range(4)] == [0, 1, 0, 1]


def test_scores_are_those_of_the_model() -> None:
    logits = torch.tensor([[0.1, 0.2, 0.7], [0.5, 0.3, 0.2]]).log()
    first, second = scores(logits, [0, 0], [2, 0], str)
    assert list(first.found) == [0, 2, 1] and list(second.found) == [0]
    assert [each.rank for each in first.found.values()] == [3, 1, 2] and second.found[0].rank == 1
    assert (first.logprob, second.logprob) == pytest.approx((-2.3026, -0.6931), abs=1e-4)
    assert first.found[2].decoded_token == "[2]"
