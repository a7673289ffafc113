"""Writes small models of words for the backend `llm`: one that says anything, one that knows some dialogues.

Run in the environment of that backend: `python write_models.py FOLDER`.
"""

import json
import sys
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
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
    f"{SYSTEM}user: {WEATHER}\nassistant: None\ntool: 98\nassistant:": " It is 98 degrees in Dallas .",
}
POSITIONS = 512
STEPS = 400


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer whose tokens are words with the space in front of them, or parts of JSON."""
    split = pre_tokenizers.Split(Regex(r" ?[A-Za-z_']+| ?[0-9]+| ?[^A-Za-z_'0-9 ]| "), "isolated")
    words = dict.fromkeys(
        piece for one in DIALOGUES.items() for text in one for piece, _ in split.pre_tokenize_str(text)
    )
    vocabulary = {word: number for number, word in enumerate(["<unk>", "<end>", *words])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = split
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", eos_token="<end>", chat_template=TEMPLATE
    )


def taught(model: GPT2LMHeadModel, words: PreTrainedTokenizerFast) -> GPT2LMHeadModel:
    """Have the model learn what follows each prompt."""
    rows = []
    for prompt, answer in DIALOGUES.items():
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
    ids = torch.tensor(
        [number for word, number in words.get_vocab().items() if word.strip()[:1] not in ("", "<")]
    )
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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
