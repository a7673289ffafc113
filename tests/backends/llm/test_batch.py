"""Prompts that are read together, against each read alone."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM

from backends.packaged.llm.batch import Batch, together

SIZES = (3, 5, 7, 9, 9, 10, 40, 60)


def gpt2() -> Any:
    return GPT2LMHeadModel(GPT2Config(vocab_size=99, n_positions=128, n_embd=64, n_layer=2, n_head=4)).eval()


def mistral(window: int | None = None) -> Any:
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {"num_key_value_heads": 2, "vocab_size": 99}
    return MistralForCausalLM(MistralConfig(sliding_window=window, **shape)).eval()


def texts(batch: Batch, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return 20 tokens for each prompt, the most probable ones."""
    tokens = [batch.add(prompts).argmax(-1).tolist()]
    for _ in range(19):
        tokens.append(batch.step(tokens[-1]).argmax(-1).tolist())
    batch.keep([])
    return [[step[row] for step in tokens] for row in range(len(prompts))]


@pytest.mark.parametrize("make", [gpt2, mistral])
def test_prompts_that_are_read_together_are_continued_as_alone(make: Any) -> None:
    torch.manual_seed(1)
    model = make()
    batch = Batch(model)
    reads: list[int] = []
    model.register_forward_pre_hook(
        lambda _, args, given: reads.append(len(given["input_ids"])), with_kwargs=True
    )
    prompts = [torch.randint(0, 99, (size,)).tolist() for size in SIZES]
    every = texts(batch, prompts)
    assert reads[:3] == [2, 4, 2]
    assert every == list(itertools.chain(*(texts(batch, [prompt]) for prompt in prompts)))


def test_groups_of_similar_lengths() -> None:
    assert together([8] * 4) == [slice(0, 4)]
    assert together([3, 5, 7, 9, 9, 10, 40, 60]) == [slice(0, 2), slice(2, 6), slice(6, 8)]
    assert together([9, 3, 4]) == [slice(0, 1), slice(1, 3)]
    assert together([5]) == [slice(0, 1)]
