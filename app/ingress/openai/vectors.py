"""`/v1/embeddings` and `/v1/rerank`: texts go to the model in batches, several at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import numpy as np

from app.core.system.tasks import by_size
from app.core.tensors import InferRequest, InferResponse
from app.ingress.http1.exchange import Exchange
from app.ingress.openai.body_route import BODIES, BodyRoute
from app.ingress.openai.catalog import Catalog, Found
from app.ingress.openai.exchange import OpenAIExchange
from app.ingress.rest.context import RouteContext
from app.protocol.http.http1 import RequestHead
from app.protocol.http.v2 import JSON_HEADERS
from app.protocol.openai.batches import Array, Shapes, input_tokens
from app.protocol.openai.caller import Caller
from app.protocol.openai.embeddings import (
    Embedder,
    Input,
    encode_embeddings,
    read_embeddings,
)
from app.protocol.openai.fields import Fields
from app.protocol.openai.rerank import PairScorer, RerankRequest, cosines, encode_rerank, read_rerank
from app.settings.openai import OpenAISettings

MAX_IN_FLIGHT: Final = 32
"""Requests to a model because of one of a client."""

_T = TypeVar("_T")
Read = Callable[[InferResponse, int], Array]


class _VectorRoute(BodyRoute):
    """Answers requests by rows of numbers.

    Args:
        context: of the front.
        catalog: has the models.
        settings: of the front.
        head: of the requests.
    """

    def __init__(
        self, context: RouteContext, catalog: Catalog, settings: OpenAISettings, head: RequestHead
    ) -> None:
        super().__init__(context, catalog, head)

    async def respond(self, exchange: Exchange, body: memoryview) -> None:
        assert isinstance(exchange, OpenAIExchange), "OpenAIRoute is around it"
        name, fields = await self.read(body)
        exchange.respond(200, JSON_HEADERS, (await self._answer(exchange, name, fields, len(body)),))

    async def _answer(self, exchange: OpenAIExchange, name: str, fields: Fields, size: int) -> bytes:
        """Return the body of the answer."""
        raise NotImplementedError

    async def _rows(
        self, exchange: Exchange, found: Found, requests: Sequence[tuple[int, InferRequest]], read: Read
    ) -> tuple[list[Array], int]:
        """Return what is read of the responses in order, and the tokens of all texts.

        Args:
            exchange: of the client.
            found: the model.
            requests: each with the number of its texts.
            read: makes rows of a response to so many texts.
        """

        async def ask(one: tuple[int, InferRequest]) -> tuple[Array, int]:
            count, request = one
            response = await self.infer(exchange, found.entry, request, self.traceparent)
            return read(response, count), input_tokens(response)

        answers = await gather(ask, requests)
        return [rows for rows, _ in answers], sum(tokens for _, tokens in answers)

    async def _embedded(
        self, exchange: OpenAIExchange, found: Found, texts: Sequence[Input], caller: Caller, dimensions: int
    ) -> tuple[list[Array], int]:
        """Return the vectors of texts, by requests, and the tokens of all texts."""
        embedder = Embedder(found.text, found.entry.inputs, shapes_of(found), dimensions)
        requests = embedder.requests(texts, caller, exchange.request_id)
        return await self._rows(exchange, found, requests, embedder.vectors)


class EmbeddingsRoute(_VectorRoute):
    """Answers requests for the vectors of texts."""

    async def _answer(self, exchange: OpenAIExchange, name: str, fields: Fields, size: int) -> bytes:
        found = await self.catalog.find(name, "embeddings")
        asked = await BODIES.by_size(size, read_embeddings, fields, found.text, found.entry.inputs)
        vectors, tokens = await self._embedded(exchange, found, asked.inputs, asked.caller, asked.dimensions)
        written = sum(part.nbytes for part in vectors)
        return await by_size(written, encode_embeddings, name, vectors, asked.base64, tokens)


class RerankRoute(_VectorRoute):
    """Answers requests for the documents that fit a query best, by a model of pairs or one of vectors."""

    async def _answer(self, exchange: OpenAIExchange, name: str, fields: Fields, size: int) -> bytes:
        found = await self.catalog.find(name, "rerank")
        asked = await BODIES.by_size(size, read_rerank, fields)
        scores, tokens = await self._scores(exchange, found, asked)
        return await by_size(size, encode_rerank, name, asked, scores, tokens)

    async def _scores(
        self, exchange: OpenAIExchange, found: Found, asked: RerankRequest
    ) -> tuple[Array, int]:
        if found.text.settings.rerank:
            settings = found.text.settings
            documents = (settings.document_prefix + each for each in asked.documents)
            texts = [settings.query_prefix + asked.query, *documents]
            vectors, tokens = await self._embedded(exchange, found, texts, asked.caller, 0)
            return cosines(vectors), tokens
        scorer = PairScorer(found.text, found.entry.inputs, shapes_of(found))
        requests = scorer.requests(asked, exchange.request_id)
        scores, tokens = await self._rows(exchange, found, requests, scorer.scores)
        return np.concatenate(scores), tokens


def shapes_of(found: Found) -> Shapes:
    """Return how a model takes texts."""
    entry = found.entry
    return Shapes(entry.model, frozenset(entry.outputs), entry.model_config.max_batch_size)


async def gather(
    ask: Callable[[_T], Awaitable[tuple[Array, int]]], requests: Sequence[_T]
) -> list[tuple[Array, int]]:
    """Return the answers to requests in order, of which at most MAX_IN_FLIGHT are in flight.

    The first failure is raised, and the others are cancelled.
    """
    if len(requests) == 1:
        return [await ask(requests[0])]
    found: dict[int, tuple[Array, int]] = {}
    left = iter(enumerate(requests))

    async def work() -> None:
        for index, request in left:
            found[index] = await ask(request)

    workers = [asyncio.create_task(work()) for _ in range(min(len(requests), MAX_IN_FLIGHT))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
    return [found[index] for index in range(len(requests))]
