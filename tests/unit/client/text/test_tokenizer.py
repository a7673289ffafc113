"""Tokens of texts and pairs: limits, padding, and what a tokenizer.json asks for that is not done."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Reader
from tokenizers import models, pre_tokenizers, processors

from nereid_client.text import TextError, Tokenizer, decode_texts

WORDS = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "a", "b", "c", "d")


def written(folder: Path, pad_id: int = 0, **changed: Any) -> Path:
    """A tokenizer of four words which, as that of MiniLM, pads to 128 tokens and cuts there."""
    reader = Reader(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]"))
    setattr(reader, "pre_tokenizer", pre_tokenizers.Whitespace())  # noqa: B010 - its stubs declare no setters
    template = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    setattr(reader, "post_processor", template)  # noqa: B010
    reader.enable_padding(length=128, pad_id=pad_id)
    reader.enable_truncation(128)
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(reader.to_str()) | changed))
    return file


def test_texts_are_padded_to_the_longest_and_not_as_the_file_asks(tmp_path: Path) -> None:
    found = Tokenizer(written(tmp_path)).encode(["a b", "c", ""])
    assert found.ids.tolist() == [[1, 4, 5, 2], [1, 6, 2, 0], [1, 2, 0, 0]]
    assert found.mask.tolist() == [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]]
    assert not found.types.any()
    assert found.counts.tolist() == [4, 3, 2]
    assert found.counts.dtype == np.int32
    assert {array.dtype for array in found} == {np.dtype(np.int64)}


def test_the_limit_is_the_callers_and_not_the_files(tmp_path: Path) -> None:
    long = " ".join("a" * 300)
    assert Tokenizer(written(tmp_path)).encode([long]).counts.tolist() == [302]
    assert Tokenizer(written(tmp_path), 5).encode([long]).ids.tolist() == [[1, 4, 4, 4, 2]]


def test_longer_texts_are_refused_where_they_are_not_cut(tmp_path: Path) -> None:
    tokenizer = Tokenizer(tmp_path / written(tmp_path), 4, truncate=False)
    assert tokenizer.encode(["a b"]).counts.tolist() == [4]
    with pytest.raises(TextError, match="text 1 has 5 tokens, which exceeds the limit of 4"):
        tokenizer.encode(["a", "a b c"])
    with pytest.raises(TextError, match="text 0 has 5 tokens"):
        tokenizer.tokens([[1, 4, 4, 4, 2]])


def test_bytes_are_limited_before_anything_is_tokenised(tmp_path: Path) -> None:
    tokenizer = Tokenizer(written(tmp_path), max_bytes=4)
    with pytest.raises(TextError, match="text 1 has 6 bytes, which exceeds the limit of 4"):
        tokenizer.encode(["abcd", "äöü"])
    with pytest.raises(TextError, match="text 0 has 5 bytes"):
        tokenizer.encode_pairs(["abc"], ["de"])


def test_pairs_have_types_and_the_longer_text_is_cut(tmp_path: Path) -> None:
    found = Tokenizer(written(tmp_path), 7).encode_pairs(["a", "a"], ["b c d b c d", "b"])
    assert found.ids.tolist() == [[1, 4, 2, 5, 6, 7, 2], [1, 4, 2, 5, 2, 0, 0]]
    assert found.types.tolist() == [[0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 0, 0]]
    with pytest.raises(ValueError):
        Tokenizer(written(tmp_path)).encode_pairs(["a"], [])


def test_lengths_are_multiples_within_the_limit(tmp_path: Path) -> None:
    tokenizer = Tokenizer(written(tmp_path), 10, multiple=8)
    assert [tokenizer.encode([text]).ids.shape[1] for text in ("a", " ".join("a" * 20))] == [8, 10]


def test_ids_of_clients_are_checked_and_padded(tmp_path: Path) -> None:
    tokenizer = Tokenizer(written(tmp_path), 3)
    found = tokenizer.tokens([[4], [4, 5, 6, 7], []])
    assert found.ids.tolist() == [[4, 0, 0], [4, 5, 6], [0, 0, 0]]
    assert found.counts.tolist() == [1, 3, 0]
    for beyond in (-1, len(WORDS), 1 << 40):
        with pytest.raises(TextError, match="text 1 has a token beyond the vocabulary of 8"):
            tokenizer.tokens([[4], [beyond]])


def test_padding_is_by_the_token_of_the_file_or_a_usual_one(tmp_path: Path) -> None:
    assert Tokenizer(written(tmp_path, pad_id=3)).encode(["", "a"]).ids[0].tolist() == [1, 2, 3]
    assert Tokenizer(written(tmp_path, padding=None)).encode(["", "a"]).ids[0].tolist() == [1, 2, 0]


def test_no_texts_have_one_column(tmp_path: Path) -> None:
    assert Tokenizer(written(tmp_path)).encode([]).ids.shape == (0, 1)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        Tokenizer(tmp_path)
    with pytest.raises(ValueError, match="at least 1"):
        Tokenizer(written(tmp_path), 0)


def test_texts_of_a_tensor() -> None:
    tensor = np.array([["Köln".encode()], ["b"]], object)
    assert decode_texts(tensor) == ["Köln", "b"]
    with pytest.raises(TextError, match="text 1 is not UTF-8"):
        decode_texts(np.array([b"a", b"\xff"], object))
