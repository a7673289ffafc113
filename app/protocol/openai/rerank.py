"""Requests and answers of `/v1/rerank`, in the shapes of Cohere, Jina and vLLM. No I/O."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from app.core.config.model_config import TensorSpec
from app.core.config.text_models import TextModel
from app.core.errors import internal
from app.core.system.random_ids import random_id
from app.core.tensors import InferRequest, InferResponse
from app.protocol.openai.batches import Array, Shapes, rows
from app.protocol.openai.caller import IGNORED, Caller, read_caller
from app.protocol.openai.embeddings import unit
from app.protocol.openai.errors import invalid, unknown_argument
from app.protocol.openai.fields import Fields, as_text

MAX_DOCUMENTS: Final = 1000
QUERY, DOCUMENT = "query", "document"
_IGNORED: Final = ("max_tokens_per_doc", "max_chunks_per_doc", "truncation")
"""How long documents are cut: models do that by limits of their own."""
_REFUSED: Final = {"rank_fields": "give the text of each document"}
_MAX_TOP: Final = (1 << 31) - 1


class RerankRequest(NamedTuple):
    """A request for the documents that fit a query best.

    Attributes:
        query: a text.
        documents: texts.
        top: how many are returned.
        texts: whether the answer has the documents' texts.
        caller: who asks.
    """

    query: str
    documents: Sequence[str]
    top: int
    texts: bool = False
    caller: Caller = Caller()


def read_rerank(fields: Fields) -> RerankRequest:
    """Read a request, without `model`.

    Raises:
        OpenAIError: a field is not allowed.
    """
    fields.refuse(_REFUSED)
    fields.drop((*IGNORED, *_IGNORED))
    query = fields.required_text("query")
    fields.require("documents")
    given = fields.items("documents", MAX_DOCUMENTS)
    if not given:
        raise invalid("Invalid 'documents': must not be empty", "documents")
    documents = [_document(each, f"documents[{place}]") for place, each in enumerate(given)]
    top = fields.integer("top_n", 1, _MAX_TOP)
    texts = fields.flag("return_documents")
    caller = read_caller(fields)
    for name in fields.left():
        raise unknown_argument(name)
    return RerankRequest(query, documents, min(top or len(given), len(given)), texts, caller)


def _document(given: Any, where: str) -> str:
    if isinstance(given, dict):
        return as_text(given.get("text"), f"{where}.text")
    return as_text(given, where)


class PairScorer:
    """The requests of pairs to a model, and the scores of its responses.

    Args:
        text: the model.
        inputs: it has.
        shapes: of its tensors.
    """

    def __init__(self, text: TextModel, inputs: Mapping[str, TensorSpec], shapes: Shapes) -> None:
        self._text = text
        self._inputs = inputs
        self._shapes = shapes

    def requests(self, request: RerankRequest, request_id: str) -> list[tuple[int, InferRequest]]:
        """Return the requests, each with the number of its documents."""
        settings, shapes, documents = self._text.settings, self._shapes, request.documents
        query, document = self._inputs[QUERY], self._inputs[DOCUMENT]
        size = min(shapes.size(query), shapes.size(document))
        found = []
        for at in range(0, len(documents), size):
            part = [settings.document_prefix + each for each in documents[at : at + size]]
            queries = [settings.query_prefix + request.query] * len(part)
            tensors = [shapes.tensor(query, queries), shapes.tensor(document, part)]
            made = shapes.request(tensors, self._text.output, request.caller, request_id)
            found.append((len(part), made))
        return found

    def scores(self, response: InferResponse, count: int) -> Array:
        """Return the scores of a response: FP32 [count], from 0 to 1 unless the model's settings say so.

        Raises:
            InferError: INTERNAL, the response has others.
        """
        found = rows(response, self._text.output, count)
        if found.shape[1] != 1:
            raise internal(f"output '{self._text.output}' has {found.shape[1]} numbers for each document")
        found = found[:, 0]
        return found if self._text.settings.activation == "none" else sigmoid(found)


def sigmoid(logits: Array) -> Array:
    """Return numbers from 0 to 1, without overflow of large ones."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * logits)), np.float32)


def cosines(vectors: Sequence[Array]) -> Array:
    """Return how alike the first vector is to each of the others, from -1 to 1: FP32 [others]."""
    query, documents = vectors[0][:1], [vectors[0][1:], *vectors[1:]]
    found = unit(np.concatenate(documents)) @ unit(query)[0]
    return np.asarray(np.clip(found, -1, 1), np.float32)


def encode_rerank(model: str, request: RerankRequest, scores: Array, tokens: int) -> bytes:
    """Return an answer: the best first, of equal ones the first.

    Args:
        model: as the client wrote it.
        request: of the client.
        scores: of all its documents in order, FP32.
        tokens: of all texts.
    """
    results = []
    for index in np.argsort(-scores, kind="stable")[: request.top].tolist():
        result: dict[str, Any] = {"index": index, "relevance_score": float(scores[index])}
        if request.texts:
            result["document"] = {"text": request.documents[index]}
        results.append(result)
    answer = {
        "id": f"rerank-{random_id()}",
        "model": model,
        "results": results,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "meta": {"tokens": {"input_tokens": tokens}},
    }
    return msgspec.json.encode(answer)
