"""The noise of draws: what it is a function of, and the texts that it makes."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from backends.packaged.llm.engine.choice import Choice, choose
from backends.packaged.llm.engine.noise import gumbel
from backends.packaged.llm.engine.sampling import SamplingParameters

CPU = torch.device("cpu")
VOCABULARY = 5000
DRAWS = 4000


def drawn(logits: torch.Tensor, count: int, **parameters: Any) -> list[int]:
    """Return the tokens of a text whose logits are always the same."""
    choice, tokens = Choice(SamplingParameters(**parameters), (), CPU), []
    for _ in range(count):
        tokens += choose(logits[None], [choice])
        choice.chosen(tokens[-1])
    return tokens


def chi_squared(tokens: list[int], probabilities: torch.Tensor) -> float:
    """Return how far counts are from what is expected of them, in parts of the tokens that may be drawn."""
    expected = probabilities.double().numpy() * len(tokens)
    counts = np.bincount(tokens, minlength=len(expected))
    assert not counts[expected == 0].any()
    able = expected > 0
    return float(((counts - expected)[able] ** 2 / expected[able]).sum())


def test_noise_of_a_token_is_that_of_its_seed_and_place_whatever_the_vocabulary() -> None:
    noise = gumbel(7, 3, 1001)
    assert torch.equal(noise[:10], gumbel(7, 3, 10)) and torch.equal(noise, gumbel(7, 3, 1001))
    others = [(8, 3), (7, 4), (-7, 3), (2**63 - 1, 3), (-(2**63), 3)]
    assert not any(torch.equal(noise, gumbel(*other, 1001)) for other in others)


def test_noise_stays_what_it_is() -> None:
    """A seed repeats its text after an upgrade of numpy and of this."""
    expected = [1.80667, 1.03156, 0.63326, 0.2572]
    assert gumbel(42, 5, 4).tolist() == pytest.approx(expected, abs=1e-5)


def test_noise_has_the_distribution_of_gumbel() -> None:
    noise = gumbel(1, 0, 1 << 22)
    assert noise.isfinite().all()  # an infinite one would be drawn whatever its probability
    assert (float(noise.mean()), float(noise.var())) == pytest.approx((0.5772, 1.6449), abs=0.005)
    assert float((noise > 8).float().mean()) == pytest.approx(3.354e-4, rel=0.1)


@pytest.mark.parametrize(
    ("parameters", "left"),
    [
        ({}, 12),
        ({"temperature": 0.5}, 12),
        ({"temperature": 1.7}, 12),
        ({"top_k": 5}, 5),
        ({"top_k": 5, "temperature": 2.0}, 5),
    ],
)
def test_tokens_are_as_frequent_as_probable(parameters: dict[str, Any], left: int) -> None:
    logits = torch.randn(12, generator=torch.Generator().manual_seed(3))
    cooled = logits / parameters.get("temperature", 1.0)
    cooled[logits < logits.topk(left).values[-1]] = -torch.inf
    of_places = drawn(logits, DRAWS, seed=11, **parameters)
    choices = [Choice(SamplingParameters(seed=seed, **parameters), (), CPU) for seed in range(DRAWS)]
    of_seeds = choose(logits.expand(DRAWS, -1), choices)
    limit = left - 1 + 4 * (2 * (left - 1)) ** 0.5  # four standard deviations of the chi-squared distribution
    for tokens in (of_places, of_seeds):
        assert chi_squared(tokens, cooled.softmax(-1)) < limit


@pytest.mark.parametrize("parameters", [{}, {"top_k": 500}, {"top_p": 0.95}, {"min_p": 0.001}])
def test_rounding_changes_no_token(parameters: dict[str, Any]) -> None:
    """As the sums of a larger batch are rounded; shares of sums over the vocabulary would move."""
    torch.manual_seed(5)
    logits = torch.randn(VOCABULARY) * 3
    rounded = logits * (1 + 2e-6 * torch.randn(VOCABULARY))
    given = {"seed": 3, "temperature": 1.2, **parameters}
    assert drawn(logits, 300, **given) == drawn(rounded, 300, **given)


def test_token_does_not_depend_on_others_that_may_not_follow() -> None:
    """A token that is drawn of all is drawn of any part that has it."""
    logits = torch.randn(1000, generator=torch.Generator().manual_seed(2))
    free = drawn(logits, 100, seed=9)
    banned = {token: -100.0 for token in range(1000) if token not in free}
    assert drawn(logits, 100, seed=9, logit_bias=banned) == free


def test_texts_without_a_seed_differ() -> None:
    assert drawn(torch.zeros(1000), 20) != drawn(torch.zeros(1000), 20)


def test_hardly_any_temperature_takes_the_most_probable_token() -> None:
    assert drawn(torch.tensor([30.0, 40.0, 39.9]), 50, seed=1, temperature=1e-300, top_k=2) == [1] * 50
