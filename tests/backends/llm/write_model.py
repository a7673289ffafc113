"""Writes small models that know a few sentences, and what transformers generates by them, where that is."""

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
)

import backends.openvino  # noqa: F401  # keeps openvino-telemetry from being imported
from tests.backends.llm.write_network import write_network

TEXT = "The old man — très âgé — fished alone. He had gone 84 days now without a fish, señor 🐟."
PROMPTS = ["The old", "He had gone 84", "T", "without a fish, se", "The old man — tr", "x"]
TOKENS = 40
TEMPLATE = (
    "{% for each in messages %}{% if each.role == 'endless' %}"
    + "{% for a in range(99999) %}" * 3
    + "{% endfor %}" * 3
    + "{% endif %}{{ each.content }}{% endfor %}"
)
"""It ends, for all roles but one."""


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer whose tokens are bytes; the last one ends a text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>", chat_template=TEMPLATE)


def trained(model: GPT2LMHeadModel, ids: torch.Tensor) -> GPT2LMHeadModel:
    """Have the model learn a text by heart."""
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(80):
        optimizer.zero_grad()
        model(ids, labels=ids).loss.backward()
        optimizer.step()
    return model.eval()


def expected(model: GPT2LMHeadModel, words: PreTrainedTokenizerFast) -> dict[str, str]:
    """Return what transformers generates, each prompt alone."""
    found = {}
    for prompt in PROMPTS:
        ids = words(prompt, return_tensors="pt").input_ids
        every = model.generate(ids, do_sample=False, max_new_tokens=TOKENS, pad_token_id=0)
        found[prompt] = words.decode(every[0, ids.shape[1] :], skip_special_tokens=True)
    return found


def main(root: Path) -> None:
    """Write `small`, which has learned `TEXT`, for both engines, and `sliding`, which sees 8 tokens."""
    torch.manual_seed(5)
    torch.set_num_threads(1)  # threads that wait for each other take minutes on a busy machine
    words = tokenizer()
    end = words.convert_tokens_to_ids("<end>")
    shape = {"vocab_size": len(words), "bos_token_id": end, "eos_token_id": end}
    small = GPT2LMHeadModel(GPT2Config(n_positions=128, n_embd=64, n_layer=2, n_head=4, **shape))
    ids = torch.tensor([[*words(TEXT).input_ids, end]])
    sliding = MistralForCausalLM(
        MistralConfig(
            hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=128, sliding_window=8, **shape,
        )
    ).eval()  # fmt: skip
    for name, model in (("small", trained(small, ids)), ("sliding", sliding)):
        folder = root / name / "1"
        model.save_pretrained(folder / "weights")
        words.save_pretrained(folder / "weights")
        (folder / "model.json").write_text('{"model": "weights"}')
        (root / name / "expected.json").write_text(json.dumps(expected(model, words)))
    weights = {name: tensor.numpy() for name, tensor in small.state_dict().items()}
    write_network(weights, small.config.n_head, root / "small" / "1" / "weights")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
