"""Requests for vectors: JSON of `embedding_request` as vLLM's backend has it. Imports no framework."""

import json
from typing import NamedTuple


class EmbeddingRequest(NamedTuple):
    """What is embedded.

    Attributes:
        input: a text, or tokens.
        dimensions: how many numbers of the vector are wanted; None for all.
    """

    input: str | list[int]
    dimensions: int | None = None


def read_embedding_request(text: str) -> EmbeddingRequest:
    """Read the JSON.

    Raises:
        ValueError: with a text for the client.
    """
    try:
        given = json.loads(text)
    except RecursionError:
        raise ValueError("embedding_request is nested too deeply") from None
    if not isinstance(given, dict):
        raise ValueError("embedding_request must be a JSON object")
    value = given.get("input")
    if isinstance(value, list):
        value = value if all(type(token) is int for token in value) else None
    if not isinstance(value, str | list):
        raise ValueError("'input' of embedding_request must be a text or a list of tokens")
    pooling = given.get("pooling_params") or {}
    dimensions = pooling.get("dimensions") if isinstance(pooling, dict) else None
    if isinstance(dimensions, list) and len(dimensions) == 1:
        dimensions = dimensions[0]
    if dimensions is not None and (type(dimensions) is not int or dimensions < 1):
        raise ValueError("'dimensions' of embedding_request must be a list of one positive integer")
    return EmbeddingRequest(value, dimensions)
