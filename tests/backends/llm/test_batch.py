"""Texts that are continued beside others, against those that transformers generates alone."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from backends.packaged.llm.engine.batch import Alone, Batch, make_batch

SIZES = (3, 5, 9, 9, 40, 60)
TOKENS = 20
SHAPE = {
    **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "vocab_size": 99, "max_position_embeddings": 128},
    "eos_token_id": None,
}
GEMMA = {**SHAPE, "head_dim": 16, "sliding_window": 8, "attn_logit_softcapping": 2.0}
MODELS = {
    "gpt2": (GPT2LMHeadModel, GPT2Config(vocab_size=99, n_positions=128, n_embd=64, n_layer=2, n_head=4)),
    "llama": (LlamaForCausalLM, LlamaConfig(**SHAPE)),
    "mistral": (MistralForCausalLM, MistralConfig(**SHAPE, sliding_window=None)),
    "sliding mistral": (MistralForCausalLM, MistralConfig(**SHAPE, sliding_window=8)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SHAPE)),
    "gemma2": (Gemma2ForCausalLM, Gemma2Config(**GEMMA)),
}


def made(name: str) -> Any:
    torch.manual_seed(1)
    kind, config = MODELS[name]
    return kind(copy.deepcopy(config)).eval()  # which has the kind of its attention


def generated(model: Any, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return what transformers generates, each prompt alone; it would take a token 0 of them for padding."""
    options = {"do_sample": False, "max_new_tokens": TOKENS, "pad_token_id": 0, "eos_token_id": None}
    every = [model.generate(torch.tensor([[*prompt]]), **options)[0] for prompt in prompts]
    return [tokens[len(prompt) :].tolist() for tokens, prompt in zip(every, prompts, strict=True)]


def continued(batch: Batch, prompts: Sequence[Sequence[int]], chunk: int) -> list[list[int]]:
    """Continue all prompts; each step reads a chunk of those that are not read yet, beside the others."""
    rows = [batch.row() for _ in prompts]
    left = [[*prompt] for prompt in prompts]
    found: list[list[int]] = [[] for _ in prompts]
    while any(len(tokens) < TOKENS for tokens in found):
        logits = batch.forward([(row, tokens[:chunk]) for row, tokens in zip(rows, left, strict=True)])
        for index, token in enumerate(logits.argmax(-1).tolist()):
            left[index] = left[index][chunk:]
            if not left[index]:
                found[index].append(token)
                left[index] = [token]
    return [tokens[:TOKENS] for tokens in found]


@pytest.mark.parametrize("chunk", [7, 100])
@pytest.mark.parametrize("name", MODELS)
def test_texts_are_those_of_transformers(name: str, chunk: int) -> None:
    model = made(name)
    prompts = [torch.randint(1, 99, (size,)).tolist() for size in SIZES]
    expected = generated(model, prompts)
    batch = make_batch(model)
    assert isinstance(batch, Batch)
    assert continued(batch, prompts, chunk) == expected


def test_model_whose_attention_is_its_own_continues_one_text_at_a_time() -> None:
    """BLOOM adds what tells positions apart to a mask."""
    torch.manual_seed(1)
    model: Any = BloomForCausalLM(BloomConfig(vocab_size=99, hidden_size=64, n_layer=2, n_head=4)).eval()
    prompt = torch.randint(1, 99, (9,)).tolist()
    expected = generated(model, [prompt])
    batch = make_batch(model)
    assert isinstance(batch, Alone)
    row = batch.row()
    tokens = [int(batch.forward([(row, prompt)]).argmax())]
    while len(tokens) < TOKENS:
        tokens.append(int(batch.forward([(row, tokens[-1:])]).argmax()))
    assert [tokens] == expected


def test_step_that_fails_can_be_repeated() -> None:
    model = made("llama")
    batch = make_batch(model)
    assert isinstance(batch, Batch)
    rows = [batch.row(), batch.row()]
    with pytest.raises(IndexError):
        batch.forward([(rows[0], [1, 2, 3]), (rows[1], [1 << 20])])
    again, new = batch.forward([(rows[0], [1, 2, 3])]), batch.forward([(batch.row(), [1, 2, 3])])
    assert torch.equal(again, new) and rows[0].length == 3
