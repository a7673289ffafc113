"""Requests for vectors."""

import json
from typing import Any

import pytest

from backends.packaged.llm.embedding_request import EmbeddingRequest, read_embedding_request


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"input": "a"}, EmbeddingRequest("a")),
        ({"input": [1, 2], "pooling_params": {}}, EmbeddingRequest([1, 2])),
        ({"input": "a", "pooling_params": {"dimensions": [8]}}, EmbeddingRequest("a", 8)),
        ({"input": "a", "pooling_params": {"dimensions": 8}}, EmbeddingRequest("a", 8)),
    ],
)
def test_requests(given: Any, expected: EmbeddingRequest) -> None:
    assert read_embedding_request(json.dumps(given)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "embedding_request must be a JSON object"),
        ("{}", "'input' of embedding_request must be a text or a list of tokens"),
        ('{"input": [true]}', "'input' of embedding_request must be a text or a list of tokens"),
        (
            '{"input": "a", "pooling_params": {"dimensions": [0]}}',
            "'dimensions' of embedding_request must be",
        ),
        ('{"input": ' + "[" * 100_000, "embedding_request is nested too deeply"),
        ("{", "Expecting property name"),
    ],
)
def test_request_that_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_embedding_request(text)
    assert str(caught.value).startswith(message)
