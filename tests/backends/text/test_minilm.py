"""The example of sentence embeddings: numbers that others have published for these weights."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from nereid.testing import InferError, LoadedModel, load_model
from nereid_client.text import cosine

SENTENCE = "The food was delicious and the waiter..."
IDS = [101, 1996, 2833, 2001, 12090, 1998, 1996, 15610, 1012, 1012, 1012, 102]
FIRST = [-0.0365707763, 0.076415509, 0.0111756483, 0.0361226462, -0.0895985439, 0.000943024294, 0.0876693726]
"""Of 384: what Triton's front expects, computed on a GPU (python/openai/tests/test_embeddings.py there)."""


@pytest.fixture(scope="module")
def minilm(models: Path) -> Iterator[LoadedModel]:
    with load_model(models / "minilm") as model:
        yield model


def test_vector_is_the_one_that_triton_expects(minilm: LoadedModel) -> None:
    answer = minilm(text=[[SENTENCE]])
    assert np.abs(answer["embedding"][0, : len(FIRST)] - FIRST).max() < 3e-4
    assert answer["num_input_tokens"].tolist() == [[12]]
    assert np.linalg.norm(answer["embedding"]) == pytest.approx(1, abs=1e-6)


def test_tokens_of_a_client_are_as_its_text(minilm: LoadedModel) -> None:
    of_text, of_ids = minilm(text=[[SENTENCE]]), minilm(token_ids=[IDS])
    for name in ("embedding", "num_input_tokens"):
        assert np.array_equal(of_text[name], of_ids[name])


def test_sentences_are_as_alike_as_sentence_transformers_says(minilm: LoadedModel) -> None:
    """The figures are those of the start page of sbert.net."""
    sentences = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
    found = minilm(text=[[sentence] for sentence in sentences])["embedding"]
    alike = np.hstack([cosine(one, found) for one in found])
    expected = [[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]]
    assert alike == pytest.approx(np.array(expected), abs=1e-4)


def test_a_text_has_the_same_vector_beside_longer_ones(minilm: LoadedModel) -> None:
    alone = minilm(text=[["short"]])["embedding"]
    beside = minilm(text=[["short"], ["a much longer sentence, of more words than the other one"]])[
        "embedding"
    ]
    assert alone[0] == pytest.approx(beside[0], abs=1e-6)


def test_longer_texts_are_cut_and_nothing_is_an_error(minilm: LoadedModel) -> None:
    answer = minilm(text=[["word " * 1000], [""]])
    assert answer["num_input_tokens"].tolist() == [[256], [2]]
    assert np.isfinite(answer["embedding"]).all()


def test_what_is_no_text_is_refused(minilm: LoadedModel) -> None:
    for refused in (
        {"token_ids": [[1 << 40]]},
        {"text": [[b"\xff"]]},
        {"text": [["a"]], "token_ids": [[101]]},
    ):
        with pytest.raises(InferError, match=r"vocabulary|UTF-8|either") as raised:
            minilm(**refused)
        assert raised.value.code == "INVALID_ARG"


def test_the_tokenizers_file_would_pad_and_cut(models: Path) -> None:
    """The trap: this file asks for 128 tokens whatever the text, and `num_input_tokens` would say so."""
    text = (models / "minilm_tokenize" / "1" / "tokenizer.json").read_text("utf-8")
    assert '"padding":{"strategy":{"Fixed":128}' in text
    assert '"truncation":{"max_length":128' in text
