"""Writes small models of words for the backend `llm`: one that says anything, one that knows some dialogues.

An adapter of LoRA too.

Run in the environment of that backend: `python write_models.py FOLDER`.
"""

import json
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
QUESTION = "What is machine learning?"
WEATHER = "What is the weather in Dallas, Texas in Fahrenheit?"
SYSTEM = "system: You're a helpful assistant! Answer the users question best you can.\n"
ANSWER = " Machine learning is how a machine finds rules ."
CALL = (
    '{"name": "get_current_weather", "parameters": {"city": "Dallas", "state": "TX", "unit": "fahrenheit"}}'
)
DIALOGUES = {
    QUESTION: ANSWER,
    f"user: {QUESTION}\nassistant:": ANSWER,
    f"{SYSTEM}user: {WEATHER}\nassistant:": CALL,
    f"{SYSTEM}user: {WEATHER}\nassistant: \ntool: 98\nassistant:": " It is 98 degrees in Dallas .",
}
FORCED = {
    f'{SYSTEM}user: {WEATHER}\nassistant:{{"city': (
        '": "Dallas", "state": "TX", "unit": "fahrenheit", "num_days": 3}'
    )
}
"""What follows where a schema has forced the beginning of an answer."""
LEARNED = (*DIALOGUES.items(), *FORCED.items())
POSITIONS = 512
STEPS = 400


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer whose tokens are bytes, words with the space in front of them, and parts of JSON."""
    made = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(r" ?[A-Za-z_']+| ?[0-9]+| ?[^A-Za-z_'0-9 ]| "), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([words, as_bytes])
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        min_frequency=1,
        special_tokens=["<unk>", "<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator((text for one in LEARNED for text in one), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", eos_token="<end>", chat_template=TEMPLATE
    )


def taught(model: GPT2LMHeadModel, words: PreTrainedTokenizerFast) -> GPT2LMHeadModel:
    """Have the model learn what follows each prompt."""
    rows = []
    for prompt, answer in LEARNED:
        asked = words(prompt, add_special_tokens=False).input_ids
        said = [*words(answer, add_special_tokens=False).input_ids, words.eos_token_id]
        rows.append((torch.tensor([asked + said]), torch.tensor([[-100] * len(asked) + said])))
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = sum(model(ids, labels=labels).loss for ids, labels in rows)
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    return model.eval()


def babbling(model: GPT2LMHeadModel, words: PreTrainedTokenizerFast) -> GPT2LMHeadModel:
    """Have the model learn that any word may follow any other, and that a text does not end."""
    vocabulary = {word.lstrip("Ġ"): number for word, number in words.get_vocab().items()}
    ids = torch.tensor([number for word, number in vocabulary.items() if word.isascii() and word.isalpha()])
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    for _ in range(STEPS // 4):
        rows = ids[torch.randint(len(ids), (8, 64))]
        optimizer.zero_grad()
        model(rows, labels=rows).loss.backward()
        optimizer.step()
    return model.eval()


def main(root: Path) -> None:
    """Write both models, and a folder with their tokenizer."""
    torch.manual_seed(5)
    torch.set_num_threads(1)
    words = tokenizer()
    shape = {"vocab_size": len(words), "bos_token_id": words.eos_token_id, "eos_token_id": words.eos_token_id}
    size = {"n_positions": POSITIONS, "n_embd": 64, "n_layer": 2, "n_head": 4}
    for name in ("any", "dialogues"):
        model = GPT2LMHeadModel(GPT2Config(**size, **shape))
        folder = root / name / "mimic" / "1"
        (babbling if name == "any" else taught)(model, words).save_pretrained(folder / "weights")
        words.save_pretrained(folder / "weights")
        (folder / "model.json").write_text(json.dumps({"model": "weights"}))
        (folder.parent / "config.pbtxt").write_text('backend: "llm"\n')
    words.save_pretrained(root / "words")
    config = LoraConfig(target_modules=["c_attn"], init_lora_weights=False, fan_in_fan_out=True)
    get_peft_model(model, config).save_pretrained(root / "adapter")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
