"""Adapters and vectors of texts in one step, against those of peft and transformers alone."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from backends.packaged.llm.adapters import add_adapters
from backends.packaged.llm.engine.batch import Batch, adapters_of, make_batch

# peft asks transformers by a name that is to be removed.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

SHAPE = {
    **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "vocab_size": 99, "max_position_embeddings": 128},
}
TARGETS = {
    "llama": ["q_proj", "v_proj", "down_proj", "lm_head", "embed_tokens"],
    "gpt2": ["c_attn", "c_fc"],
}
PROMPTS = ([5, 6, 7, 8, 9], [1, 2, 3], [5, 6, 7, 8, 9], [4] * 20)
NAMES = ("red", "blue", "", "red")


def made(kind: str) -> Any:
    torch.manual_seed(1)
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**SHAPE)).eval()
    return GPT2LMHeadModel(GPT2Config(vocab_size=99, n_positions=128, n_embd=64, n_layer=2, n_head=4)).eval()


def adapter(model: Any, kind: str, folder: Path, seed: int) -> str:
    """Write an adapter with weights that change texts; return its folder."""
    torch.manual_seed(seed)
    config = LoraConfig(
        r=4 * seed,
        target_modules=TARGETS[kind],
        lora_alpha=16,
        init_lora_weights=False,
        fan_in_fan_out=kind == "gpt2",
    )
    get_peft_model(copy.deepcopy(model), config).save_pretrained(folder, save_embedding_layers=False)
    return str(folder)


def alone(model: Any, folder: str, prompt: Sequence[int]) -> torch.Tensor:
    """Return the logits that peft computes, with one adapter or none."""
    whole = copy.deepcopy(model)
    whole = PeftModel.from_pretrained(whole, folder).eval() if folder else whole
    with torch.inference_mode():
        logits: torch.Tensor = whole(torch.tensor([[*prompt]])).logits[0, -1]
    return logits


@pytest.mark.parametrize("kind", TARGETS)
def test_rows_of_different_adapters_are_those_of_peft(kind: str, tmp_path: Path) -> None:
    model = made(kind)
    folders = {
        name: adapter(model, kind, tmp_path / name, seed) for seed, name in enumerate(("red", "blue"), 1)
    }
    expected = [
        alone(model, folders.get(name, ""), prompt) for name, prompt in zip(NAMES, PROMPTS, strict=True)
    ]
    add_adapters(model, folders, adapters_of)
    batch = make_batch(model)
    assert isinstance(batch, Batch)
    rows = [batch.row(name) for name in NAMES]
    found = batch.forward(list(zip(rows, PROMPTS, strict=True)))
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(found[0], found[2], atol=1e-2)
    next_tokens = found.argmax(-1).tolist()
    found = batch.forward([(row, [token]) for row, token in zip(rows, next_tokens, strict=True)])
    for index, (name, prompt) in enumerate(zip(NAMES, PROMPTS, strict=True)):
        wanted = alone(made(kind), folders.get(name, ""), [*prompt, next_tokens[index]])
        torch.testing.assert_close(found[index], wanted, atol=1e-5, rtol=1e-4)


def test_vectors_are_last_hidden_states() -> None:
    model = made("llama")
    with torch.inference_mode():
        every = [model.base_model(torch.tensor([prompt])).last_hidden_state[0, -1] for prompt in PROMPTS]
    batch = make_batch(model)
    rows = [batch.row() for _ in PROMPTS]
    batch.forward([(row, prompt[:2]) for row, prompt in zip(rows, PROMPTS, strict=True)])
    batch.forward([(row, prompt[2:]) for row, prompt in zip(rows, PROMPTS, strict=True)])
    torch.testing.assert_close(
        torch.stack([row.hidden for row in rows if row.hidden is not None]),
        torch.stack(every),
        atol=1e-5,
        rtol=1e-4,
    )


def test_adapter_with_whole_modules_is_refused(tmp_path: Path) -> None:
    model = made("llama")
    config = LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"])
    get_peft_model(copy.deepcopy(model), config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="adapter 'red' is not of LoRA alone"):
        add_adapters(model, {"red": str(tmp_path)}, adapters_of)
