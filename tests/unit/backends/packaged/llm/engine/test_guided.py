"""Texts that fit a grammar, whatever the model would say."""

import json
import re
from collections.abc import Collection
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from llguidance import LLTokenizer

from backends.packaged.llm.engine.choice import Choice, RequestError, choose
from backends.packaged.llm.engine.guided import Guide, Guides
from backends.packaged.llm.engine.sampling import SamplingParameters, Structure

END = 261
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Dallas", "São Paulo"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 3},
    },
    "required": ["city", "days", "tags"],
    "additionalProperties": False,
}


class Bytes(Guides):
    """Guides for tokens that are bytes."""

    def __init__(self, vocabulary: int = 300, ends: Collection[int] = (END,)) -> None:
        super().__init__(None, vocabulary, ends)
        self._known = LLTokenizer("byte", n_vocab=vocabulary)


def text(guide: Guide, seed: int, **parameters: Any) -> str:
    """Return a text of random logits."""
    given = SamplingParameters(seed=seed, **parameters)
    choice = Choice(given, (), torch.device("cpu"), (END,), guide)
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = []
    while not choice.ended and len(tokens) < 500:
        tokens += choose(torch.randn(1, 300, generator=generator), [choice])
        choice.chosen(tokens[-1])
    return bytes(token for token in tokens if token != END).decode()


def is_valid(given: dict[str, Any]) -> bool:
    tags = given.pop("tags")
    return (
        given.pop("city") in ("Dallas", "São Paulo")
        and 1 <= given.pop("days") <= 14
        and len(tags) <= 3
        and all(isinstance(tag, str) and len(tag) <= 5 for tag in tags)
        and not given
    )


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_samples_of_a_schema_are_valid(count: int) -> None:
    guides = Bytes()
    structure = Structure("json", json.dumps(SCHEMA))
    assert all(is_valid(json.loads(text(guides.make(structure), seed))) for seed in range(count))


def test_other_structures() -> None:
    guides = Bytes()
    assert {text(guides.make(Structure("choice", '["yes", "no \\"x\\""]')), seed) for seed in range(20)} == {
        "yes",
        'no "x"',
    }
    assert re.fullmatch("[a-c]{3}[0-9]", text(guides.make(Structure("regex", "[a-c]{3}[0-9]")), 1))
    assert text(guides.make(Structure("grammar", 'start: "a" "b"')), 1) == "ab"
    assert text(guides.make(Structure("choice", '["abc"]')), 1, min_tokens=9) == "abc"


@pytest.mark.parametrize(
    "structure",
    [
        Structure("json", '{"type": "animal"}'),
        Structure("json", "{"),
        Structure("regex", "(a"),
        Structure("grammar", "begin"),
    ],
)
def test_structure_that_is_none_is_refused(structure: Structure) -> None:
    with pytest.raises(ValueError):
        text(Bytes().make(structure), 1)


def test_model_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match=r"needs a tokenizer.json and an end token"):
        Guides(None, 300, ()).make(Structure("regex", "a"))


def test_grammar_that_comes_to_a_limit_is_the_clients_mistake() -> None:
    wide = [
        {"type": "object", "properties": {f"k{at}{n}": {"type": "string"} for n in range(20)}}
        for at in range(40)
    ]
    structure = Structure("json", json.dumps({"anyOf": wide}))
    with pytest.raises(RequestError, match=r"structured_outputs: [^\n]*$"):
        text(Bytes().make(structure), 1)
