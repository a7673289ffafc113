"""Requests for embeddings to those of a model, and its vectors to answers."""

import base64
import json
from typing import Any

import numpy as np
import pytest
from openai.types import CreateEmbeddingResponse
from pydantic import TypeAdapter

from app.core.errors import InferError
from app.core.tensors import InferRequest, Tensor
from app.protocol.openai.batches import input_tokens, rows
from app.protocol.openai.caller import Caller
from app.protocol.openai.embeddings import Embedder, EmbeddingsRequest, encode_embeddings, read_embeddings
from app.protocol.openai.errors import OpenAIError
from app.protocol.openai.fields import Fields
from tests.unit.app.protocol.openai.embedders import VECTORS, VLLM, Model, floats, model, response

UNBATCHED = VECTORS.replace("max_batch_size: 4", "").replace("dims: [ 1 ] optional", "dims: [ -1 ] optional")


def read(asked: Model, **fields: Any) -> EmbeddingsRequest:
    return read_embeddings(Fields(fields), asked.text, asked.inputs)


def sent(asked: Model, given: Any, dimensions: int = 0) -> list[tuple[int, dict[str, Any]]]:
    """The number of texts of each request, and shape and values of its tensors."""
    embedder = Embedder(asked.text, asked.inputs, asked.shapes, dimensions)
    made = embedder.requests(read(asked, input=given).inputs, Caller(), "7")
    return [(count, {t.name: (t.shape, t.array().ravel().tolist()) for t in r.inputs}) for count, r in made]


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_inputs_are_texts_or_tokens(given: Any, inputs: list[Any]) -> None:
    assert list(read(model(VECTORS), input=given).inputs) == inputs


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({}, "input", "Missing required parameter: 'input'"),
        ({"input": ""}, "input", "a text must not be empty"),
        ({"input": []}, "input", "must not be empty"),
        ({"input": 1.5}, "input", "expected a text or an array"),
        ({"input": ["a", 3]}, "input[1]", "expected a text"),
        ({"input": [1, "a"]}, "input", "expected token ids"),
        ({"input": [[1], []]}, "input[1]", "expected an array of token ids"),
        ({"input": [[1], [True]]}, "input[1]", "expected token ids"),
        ({"input": [[-1]]}, "input", "expected token ids"),
        ({"input": ["a"] * 2049}, "input", "at most 2048 items, got 2049"),
        ({"input": [[1] * 600_000] * 2}, "input", "at most 1048576 token ids"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "must be one of 'float', 'base64'"),
        ({"input": "a", "encoding_format": 0}, "encoding_format", "expected a text"),
        ({"input": "a", "dimensions": 8}, "dimensions", "does not support specifying dimensions"),
        ({"input": "a", "colour": 1}, "colour", "Unrecognized request argument supplied: colour"),
    ],
)
def test_mistakes_name_the_field(fields: dict[str, Any], param: str, text: str) -> None:
    with pytest.raises(OpenAIError) as raised:
        read(model(VECTORS), **fields)
    assert raised.value.param == param
    assert text in raised.value.message


def test_tokens_are_refused_by_a_model_that_takes_text() -> None:
    without = VECTORS.replace("token_ids", "other").replace("[ 1 ] optional: true", "[ 1 ]")
    for given in (without, VECTORS.replace("TYPE_INT64", "TYPE_INT8")):
        with pytest.raises(OpenAIError, match="as token ids: the model takes text"):
            read(model(given), input=[1])


def test_who_asks_becomes_parameters() -> None:
    found = read(model(VECTORS), input="a", user="me", priority=3, timeout=9, metadata={"a": "b"})
    assert found.caller == Caller({"user": "me"}, 3, 9)


def test_texts_go_in_batches_and_tokens_one_by_one() -> None:
    asked = model(VECTORS)
    assert sent(asked, [*"abcde"]) == [
        (4, {"text": ((4, 1), [b"a", b"b", b"c", b"d"])}),
        (1, {"text": ((1, 1), [b"e"])}),
    ]
    assert sent(asked, [[5, 6], [7]]) == [
        (1, {"token_ids": ((1, 2), [5, 6])}),
        (1, {"token_ids": ((1, 1), [7])}),
    ]


def test_models_without_batches() -> None:
    assert [(n, t["text"][0]) for n, t in sent(model(UNBATCHED), ["a"] * 33)] == [(32, (32,)), (1, (1,))]
    single = model(VECTORS.replace("max_batch_size: 4", ""))
    assert sent(single, ["a", "b"]) == [(1, {"text": ((1,), [b"a"])}), (1, {"text": ((1,), [b"b"])})]


def test_requests_ask_for_vectors_and_tokens_alone() -> None:
    asked = model(VECTORS)
    embedder = Embedder(asked.text, asked.inputs, asked.shapes)
    ((_, request),) = embedder.requests(["a"], Caller({"user": "me"}, 1, 2), "7")
    assert isinstance(request, InferRequest)
    assert [output.name for output in request.outputs] == ["vector", "num_input_tokens"]
    assert (request.id, request.parameters, request.priority, request.timeout_us) == (
        "7",
        {"user": "me"},
        1,
        2,
    )


def test_prefixes_are_those_of_the_settings() -> None:
    asked = model(VECTORS, '{"query_prefix": "q: ", "document_prefix": "d: "}')
    assert read(asked, input="a").inputs == ["d: a"]
    assert read(asked, input="a", input_type="search_query").inputs == ["q: a"]
    assert read(asked, input=[1]).inputs == [[1]]


def test_vllm_gets_one_text_in_a_document() -> None:
    asked = model(VLLM)
    (first, second) = sent(asked, ["a", "b"], dimensions=8)
    assert (first[0], second[0]) == (1, 1)
    document = json.loads(first[1]["embedding_request"][1][0])
    assert document == {"input": "a", "pooling_params": {"dimensions": [8]}}
    assert first[1]["text_input"] == ((1,), [b""])
    assert first[1]["return_num_input_tokens"] == ((1,), [True])


def test_vectors_of_vllm_are_a_list_in_a_text() -> None:
    asked = model(VLLM)
    embedder = Embedder(asked.text, asked.inputs, asked.shapes)
    text = Tensor.from_array("text_output", np.array([b"[0.5, -1]"], object))
    assert embedder.vectors(response(text), 1).tolist() == [[0.5, -1]]
    wrong = Tensor.from_array("text_output", np.array([b'{"error": 1}'], object))
    with pytest.raises(InferError, match="no list of numbers"):
        embedder.vectors(response(wrong), 1)


@pytest.mark.parametrize(
    ("values", "count", "expected"),
    [
        ([[1, 2], [3, 4]], 2, [[1, 2], [3, 4]]),
        ([1, 2], 1, [[1, 2]]),
        ([[[1, 2]], [[3, 4]]], 2, [[1, 2], [3, 4]]),
    ],
)
def test_rows_of_any_shape(values: Any, count: int, expected: Any) -> None:
    for dtype in (np.float32, np.float16, np.float64):
        found = rows(response(floats("v", values, dtype)), "v", count)
        assert found.tolist() == expected
        assert found.dtype == np.float32


def test_rows_of_bfloat16() -> None:
    pattern = (np.array([[1.5, -2]], np.float32).view(np.uint32) >> 16).astype(np.uint16)
    found = rows(response(Tensor.from_array("v", pattern, "BF16")), "v", 1)
    assert found.tolist() == [[1.5, -2]]


@pytest.mark.parametrize(("values", "count"), [([[1, 2]], 2), ([], 1), ([[1], [2], [3]], 2), ([np.nan], 1)])
def test_rows_that_do_not_fit_are_the_models_failure(values: Any, count: int) -> None:
    with pytest.raises(InferError, match="output 'v'"):
        rows(response(floats("v", values)), "v", count)
    with pytest.raises(InferError, match="no output 'w'"):
        rows(response(floats("v", values)), "w", count)


def test_fewer_dimensions_are_of_length_one() -> None:
    asked = model(VECTORS, '{"dimensions": true}')
    vectors = response(floats("vector", [[3, 4, 9], [0, 0, 1]]))
    found = Embedder(asked.text, asked.inputs, asked.shapes, 2).vectors(vectors, 2)
    assert found == pytest.approx(np.array([[0.6, 0.8], [0, 0]]))
    with pytest.raises(OpenAIError, match="the model has 3, got 4"):
        Embedder(asked.text, asked.inputs, asked.shapes, 4).vectors(vectors, 2)


def test_tokens_are_added_up_where_the_model_says_them() -> None:
    assert input_tokens(response(floats("num_input_tokens", [[3], [4]], np.int32))) == 7
    assert input_tokens(response(floats("vector", [1]))) == 0


@pytest.mark.parametrize("written", [False, True])
def test_answer_is_valid_by_the_types_of_openai(written: bool) -> None:
    vectors = [np.array([[0.1, 2], [3, 4]], np.float32), np.array([[5, 6]], np.float32)]
    document = json.loads(encode_embeddings("m", vectors, written, 9))
    assert [each["index"] for each in document["data"]] == [0, 1, 2]
    if written:  # the client decodes them before it validates
        for each in document["data"]:
            each["embedding"] = np.frombuffer(base64.b64decode(each["embedding"]), "<f4").tolist()
    found = TypeAdapter(CreateEmbeddingResponse).validate_python(document, strict=True)
    assert found.data[0].embedding == [float(np.float32(0.1)), 2.0]
    assert found.data[2].embedding == [5, 6]
    assert (found.usage.prompt_tokens, found.usage.total_tokens) == (9, 9)
