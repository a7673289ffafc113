"""Requests and answers of `/v1/embeddings`. No I/O."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from app.core.config.model_config import TensorSpec
from app.core.config.text_models import TOKEN_IDS, TextModel
from app.core.datatypes import pack_bytes
from app.core.errors import internal
from app.core.tensors import InferRequest, InferResponse, Tensor
from app.protocol.openai.batches import Array, Shapes, find, rows
from app.protocol.openai.caller import IGNORED, Caller, read_caller
from app.protocol.openai.errors import invalid, refused, unknown_argument
from app.protocol.openai.fields import Fields, as_text, wrong_type

MAX_INPUTS: Final = 2048
_MAX_IDS: Final = 1 << 20
"""Tokens of all inputs."""
_MAX_ID: Final = (1 << 31) - 1
_ID_TYPES: Final = ("INT32", "INT64", "UINT32", "UINT64")
_MAX_DIMENSIONS: Final = 1 << 16
_EMBEDDING: Final = "embedding_request"

Input = str | list[int]


class EmbeddingsRequest(NamedTuple):
    """A request for the vectors of texts.

    Attributes:
        inputs: texts, or lists of token ids.
        base64: how vectors are written.
        dimensions: of the vectors; 0 for the model's.
        caller: who asks.
    """

    inputs: Sequence[Input]
    base64: bool = False
    dimensions: int = 0
    caller: Caller = Caller()


def read_embeddings(fields: Fields, text: TextModel, known: Mapping[str, TensorSpec]) -> EmbeddingsRequest:
    """Read a request.

    Args:
        fields: of the request, without `model`.
        text: the model.
        known: its inputs.

    Raises:
        OpenAIError: a field is not allowed.
    """
    fields.drop(IGNORED)
    fields.require("input")
    inputs = _inputs(fields.take("input"))
    base64 = fields.choice("encoding_format", ("float", "base64")) == "base64"
    dimensions = fields.integer("dimensions", 1, _MAX_DIMENSIONS) or 0
    if dimensions and not (text.embeds or text.settings.dimensions):
        raise invalid("This model does not support specifying dimensions.", "dimensions")
    prefix = _prefix(fields, text)
    caller = read_caller(fields)
    for name in fields.left():
        raise unknown_argument(name)
    if isinstance(inputs[0], list) and not text.embeds and not _takes_ids(known):
        raise refused("input", "as token ids: the model takes text")
    if prefix:
        inputs = [prefix + each if isinstance(each, str) else each for each in inputs]
    return EmbeddingsRequest(inputs, base64, dimensions, caller)


def _prefix(fields: Fields, text: TextModel) -> str:
    kind = fields.choice("input_type", ("query", "document", "search_query", "search_document"))
    return text.settings.query_prefix if kind.endswith("query") else text.settings.document_prefix


def _takes_ids(known: Mapping[str, TensorSpec]) -> bool:
    return TOKEN_IDS in known and known[TOKEN_IDS].datatype in _ID_TYPES


def _inputs(given: Any) -> list[Input]:
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, list):
        raise wrong_type("input", "a text or an array", given)
    if not given:
        raise invalid("Invalid 'input': must not be empty", "input")
    if type(given[0]) is int:
        given = [given]
    if len(given) > MAX_INPUTS:
        raise invalid(f"Invalid 'input': must have at most {MAX_INPUTS} items, got {len(given)}", "input")
    if isinstance(given[0], list):
        return _token_lists(given)
    found = [as_text(each, f"input[{place}]") for place, each in enumerate(given)]
    if not all(found):
        raise invalid("Invalid 'input': a text must not be empty", "input")
    return list(found)


def _token_lists(given: list[Any]) -> list[Input]:
    left = _MAX_IDS
    for place, each in enumerate(given):
        where = f"input[{place}]" if len(given) > 1 else "input"
        if not isinstance(each, list) or not each:
            raise wrong_type(where, "an array of token ids", each)
        left -= len(each)
        if left < 0:
            raise invalid(f"Invalid 'input': must have at most {_MAX_IDS} token ids", "input")
        if not all(type(one) is int and 0 <= one <= _MAX_ID for one in each):
            raise invalid(f"Invalid '{where}': expected token ids", where)
    return given


class Embedder:
    """The requests of texts to a model, and the vectors of its responses.

    Args:
        text: the model.
        inputs: it has.
        shapes: of its tensors.
        dimensions: of the vectors; 0 for the model's.
    """

    def __init__(
        self, text: TextModel, inputs: Mapping[str, TensorSpec], shapes: Shapes, dimensions: int = 0
    ) -> None:
        self._text = text
        self._inputs = inputs
        self._shapes = shapes
        self._dimensions = dimensions

    def requests(
        self, inputs: Sequence[Input], caller: Caller, request_id: str
    ) -> list[tuple[int, InferRequest]]:
        """Return the requests, each with the number of its texts."""
        output = self._text.output
        return [
            (count, self._shapes.request(tensors, output, caller, request_id))
            for count, tensors in self._batches(inputs)
        ]

    def _batches(self, inputs: Sequence[Input]) -> list[tuple[int, list[Tensor]]]:
        if self._text.embeds:
            return [(1, self._vllm(each)) for each in inputs]
        if isinstance(inputs[0], list):
            spec = self._inputs[TOKEN_IDS]
            return [(1, [self._shapes.ids(spec, each)]) for each in inputs if isinstance(each, list)]
        spec, texts = self._inputs[self._text.text], [each for each in inputs if isinstance(each, str)]
        size = self._shapes.size(spec)
        parts = [texts[at : at + size] for at in range(0, len(texts), size)]
        return [(len(part), [self._shapes.tensor(spec, part)]) for part in parts]

    def _vllm(self, given: Input) -> list[Tensor]:
        """Return the inputs of vLLM's backend: one text in a JSON object, and a prompt that it requires."""
        pooling = {"dimensions": [self._dimensions]} if self._dimensions else {}
        document = msgspec.json.encode({"input": given, "pooling_params": pooling})
        spec = self._inputs[_EMBEDDING]
        shape = self._shapes.tensor(spec, [""]).shape
        made = [Tensor(spec.name, "BYTES", shape, pack_bytes([document]))]
        if not self._inputs[self._text.text].optional:
            made.append(self._shapes.tensor(self._inputs[self._text.text], [""]))
        reports = [name for name in ("return_num_input_tokens",) if name in self._inputs]
        return made + [Tensor.from_array(name, np.ones(shape, np.bool_)) for name in reports]

    def vectors(self, response: InferResponse, count: int) -> Array:
        """Return the vectors of a response: FP32 [count, dimensions].

        Raises:
            InferError: INTERNAL, the response has others.
            OpenAIError: the model's vectors have fewer dimensions.
        """
        if self._text.embeds:
            return self._listed(response)
        found = rows(response, self._text.output, count)
        wanted = self._dimensions
        if wanted > found.shape[1]:
            raise invalid(f"Invalid 'dimensions': the model has {found.shape[1]}, got {wanted}", "dimensions")
        return unit(found[:, :wanted]) if wanted else found

    def _listed(self, response: InferResponse) -> Array:
        (text, *_) = find(response, self._text.output).array().ravel().tolist()
        try:
            found = np.array([msgspec.json.decode(text, type=list[float])], np.float32)
        except msgspec.DecodeError:
            raise internal("the model's embedding is no list of numbers") from None
        return found


def unit(vectors: Array) -> Array:
    """Return vectors of length 1; one of zeros stays one."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1), np.float32)


def encode_embeddings(model: str, vectors: Sequence[Array], base64: bool, tokens: int) -> bytes:
    """Return an answer.

    Args:
        model: as the client wrote it.
        vectors: of the requests in order, FP32 [texts, dimensions].
        base64: whether numbers are written as the bytes of FP32, little-endian, in base64.
        tokens: of all texts.
    """
    found = [row for part in vectors for row in part]
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": b64encode(row.tobytes()).decode() if base64 else row.tolist(),
        }
        for index, row in enumerate(found)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return msgspec.json.encode({"object": "list", "data": data, "model": model, "usage": usage})
