"""Requests to rank documents, and scores to answers."""

import json
import math
from typing import Any

import numpy as np
import pytest

from app.core.errors import InferError
from app.protocol.openai.caller import Caller
from app.protocol.openai.errors import OpenAIError
from app.protocol.openai.fields import Fields
from app.protocol.openai.rerank import PairScorer, RerankRequest, cosines, encode_rerank, read_rerank, sigmoid
from tests.unit.app.protocol.openai.embedders import PAIRS, floats, model, response


def read(**fields: Any) -> RerankRequest:
    return read_rerank(Fields(fields))


def test_documents_are_texts_or_objects() -> None:
    found = read(query="q", documents=["a", {"text": "b", "id": 7}], top_n=5, max_tokens_per_doc=9)
    assert found == RerankRequest("q", ["a", "b"], 2, False, Caller())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"documents": ["a"]}, "query"),
        ({"query": "", "documents": ["a"]}, "query"),
        ({"query": "q"}, "documents"),
        ({"query": "q", "documents": []}, "documents"),
        ({"query": "q", "documents": "a"}, "documents"),
        ({"query": "q", "documents": ["a"] * 1001}, "documents"),
        ({"query": "q", "documents": ["a", 3]}, "documents[1]"),
        ({"query": "q", "documents": [{"title": "a"}]}, "documents[0].text"),
        ({"query": "q", "documents": ["a"], "top_n": 0}, "top_n"),
        ({"query": "q", "documents": ["a"], "rank_fields": ["text"]}, "rank_fields"),
        ({"query": "q", "documents": ["a"], "colour": 1}, "colour"),
    ],
)
def test_mistakes_name_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(OpenAIError) as raised:
        read(**fields)
    assert raised.value.param == param


def test_pairs_go_in_batches() -> None:
    asked = model(PAIRS, '{"query_prefix": "q: "}')
    scorer = PairScorer(asked.text, asked.inputs, asked.shapes)
    made = scorer.requests(read(query="x", documents=["a", "b", "c"]), "7")
    assert [count for count, _ in made] == [2, 1]
    tensors = [{t.name: t.array().tolist() for t in request.inputs} for _, request in made]
    assert tensors == [
        {"query": [[b"q: x"], [b"q: x"]], "document": [[b"a"], [b"b"]]},
        {"query": [[b"q: x"]], "document": [[b"c"]]},
    ]


def test_scores_are_between_zero_and_one_unless_the_settings_say_so() -> None:
    logits = response(floats("score", [[2], [-1e30]]))
    asked = model(PAIRS)
    found = PairScorer(asked.text, asked.inputs, asked.shapes).scores(logits, 2)
    assert found.tolist() == pytest.approx([1 / (1 + math.exp(-2)), 0])
    plain = model(PAIRS, '{"activation": "none"}')
    assert PairScorer(plain.text, plain.inputs, plain.shapes).scores(logits, 2).tolist()[0] == 2


def test_more_than_one_score_for_a_document_is_the_models_failure() -> None:
    asked = model(PAIRS)
    with pytest.raises(InferError, match="2 numbers for each document"):
        PairScorer(asked.text, asked.inputs, asked.shapes).scores(response(floats("score", [[1, 2]])), 1)


def test_vectors_are_compared_with_the_first() -> None:
    parts = [np.array([[2, 0], [0, 1]], np.float32), np.array([[1, 0], [-3, 0], [0, 0]], np.float32)]
    assert cosines(parts).tolist() == [0, 1, -1, 0]


def test_the_best_come_first_and_of_equal_ones_the_first() -> None:
    asked = read(query="q", documents=["a", "b", "c", "d"], top_n=3, return_documents=True)
    document = json.loads(encode_rerank("m", asked, np.array([0.5, 0.75, 0.5, 0.75], np.float32), 11))
    assert document.pop("id").startswith("rerank-")
    assert document == {
        "model": "m",
        "results": [
            {"index": 1, "relevance_score": 0.75, "document": {"text": "b"}},
            {"index": 3, "relevance_score": 0.75, "document": {"text": "d"}},
            {"index": 0, "relevance_score": 0.5, "document": {"text": "a"}},
        ],
        "usage": {"prompt_tokens": 11, "total_tokens": 11},
        "meta": {"tokens": {"input_tokens": 11}},
    }


def test_sigmoid_does_not_overflow() -> None:
    assert sigmoid(np.array([-1e30, 0, 1e30])).tolist() == [0, 0.5, 1]
