"""Embeddings and rankings over the fronts: batches, order, failures."""

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from app.core.errors import ErrorCode, InferError, invalid_arg
from app.core.inference import Sink
from app.core.tensors import InferRequest, InferResponse, Tensor, failed
from app.ingress.openai.vectors import MAX_IN_FLIGHT, gather
from app.routing.table import VersionEntry
from tests.server import free_port, wait_until
from tests.unit.app.http_fakes import FakeService
from tests.unit.app.ingress.openai.test_management import Ask, ask
from tests.unit.app.ingress.running_fronts import WAIT_S, Fronts
from tests.unit.app.protocol.openai.embedders import PAIRS, VECTORS, config
from tests.unit.app.routing_fakes import FakeCall


class Vectors(FakeService):
    """Answers the texts of its requests by their lengths; a text `bad` fails its request."""

    def __init__(self, text: str = VECTORS, settings: str = '{"rerank": "cosine"}') -> None:
        super().__init__()
        self.config = config(text, settings)
        self.config.name = "identity"
        self.received: list[InferRequest] = []

    def answer(self, request: InferRequest) -> InferResponse:
        self.received.append(request)
        given = request.inputs[-1].array()
        if b"bad" in given.ravel().tolist():
            return failed(invalid_arg("this text is bad"), request.id)
        sizes = np.array([[len(each)] for each in given.ravel().tolist()], np.float32)
        if self.config.input[0].name == "query":
            return InferResponse("identity", "1", (Tensor.from_array("score", sizes),), request.id)
        made = np.hstack([sizes, np.ones_like(sizes)])
        tokens = Tensor.from_array("num_input_tokens", sizes.astype(np.int32))
        return InferResponse("identity", "1", (Tensor.from_array("vector", made), tokens), request.id)


@pytest.fixture
def openai(fronts: Fronts) -> Iterator[Any]:
    opened = []

    def start(service: FakeService) -> Ask:
        port = free_port()
        running = fronts(service=service, openai_port=port)
        opened.append(running)
        running.__enter__()
        return lambda path, **fields: ask(
            port, "POST", path, json.dumps({"model": "identity", **fields}).encode()
        )

    yield start
    for running in opened:
        running.__exit__(None, None, None)


def test_vectors_are_in_the_order_of_the_texts(openai: Any) -> None:
    service = Vectors()
    found = openai(service)("/v1/embeddings", input=["x" * (n + 1) for n in range(9)])
    assert [each["embedding"] for each in found.document["data"]] == [[n + 1, 1] for n in range(9)]
    assert found.document["usage"] == {"prompt_tokens": 45, "total_tokens": 45}
    assert [request.inputs[0].shape for request in service.received] == [(4, 1), (4, 1), (1, 1)]
    assert {request.id for request in service.received} == {found.headers["x-request-id"]}


def test_a_failure_is_the_answer_to_all(openai: Any) -> None:
    found = openai(Vectors())("/v1/embeddings", input=[*"abcd", "bad"])
    assert found.status == 400
    assert found.document["error"]["message"] == "this text is bad"


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_documents_are_ranked_by_vectors(openai: Any, path: str) -> None:
    found = openai(Vectors())(path, query="qqqq", documents=["a", "bb", "cccc", "d"])
    results = found.document["results"]
    assert [each["index"] for each in results] == [2, 1, 0, 3]
    assert results[0]["relevance_score"] == pytest.approx(1)
    assert found.document["usage"]["prompt_tokens"] == 12


def test_documents_are_ranked_by_pairs(openai: Any) -> None:
    service = Vectors(PAIRS, '{"activation": "none"}')
    found = openai(service)("/v1/rerank", query="q", documents=["a", "bb", "ccc"], top_n=2)
    assert [(each["index"], each["relevance_score"]) for each in found.document["results"]] == [
        (2, 3),
        (1, 2),
    ]
    assert len(service.received) == 2


def test_a_model_is_for_its_tasks_alone(openai: Any) -> None:
    asked = openai(Vectors(settings=""))
    assert asked("/v1/embeddings", input="a").status == 200
    refused = asked("/v1/rerank", query="q", documents=["a"])
    assert (refused.status, refused.document["error"]["code"]) == (400, "model_not_supported")


async def test_so_many_requests_are_in_flight_and_the_first_failure_cancels_the_others() -> None:
    numbers: list[int] = []
    now = most = 0

    async def asked(number: int) -> tuple[Any, int]:
        nonlocal now, most
        now += 1
        most = max(most, now)
        try:
            await asyncio.sleep(0)
            if number == 40:
                raise invalid_arg("no")
        finally:
            now -= 1
        numbers.append(number)
        return np.zeros(1), number

    assert [each for _, each in await gather(asked, range(40))] == [*range(40)]
    with pytest.raises(InferError, match="no"):
        await gather(asked, range(2000))
    await asyncio.sleep(0)
    assert (now, most) == (0, MAX_IN_FLIGHT)
    assert max(numbers) < 40 + 2 * MAX_IN_FLIGHT


def test_a_client_that_leaves_cancels_its_requests(fronts: Fronts) -> None:
    service, port = Vectors(), free_port()
    service.hold = True
    body = json.dumps({"model": "identity", "input": ["x"] * 300}).encode()
    with fronts(service=service, openai_port=port):
        client = socket.create_connection(("127.0.0.1", port))
        client.sendall(
            b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        wait_until(lambda: len(service.held) == MAX_IN_FLIGHT, WAIT_S, "requests are in flight")
        client.close()
        wait_until(lambda: all(call.cancelled for call in service.calls), WAIT_S, "they are cancelled")
    assert service.requests == MAX_IN_FLIGHT


def test_a_refusal_in_the_middle_cancels_the_others(openai: Any) -> None:
    """As that of a token's rate, which counts each request to the model."""

    class Limited(Vectors):
        def submit(self, entry: VersionEntry, request: InferRequest, sink: Sink) -> FakeCall:
            if self.requests == 5:
                raise InferError(ErrorCode.RESOURCE_EXHAUSTED, "too many requests", retry_after_s=3)
            self.hold = True
            return super().submit(entry, request, sink)

    service = Limited()
    found = openai(service)("/v1/embeddings", input=["x"] * 300)
    assert (found.status, found.document["error"]["code"]) == (429, "rate_limit_exceeded")
    assert found.headers["retry-after"] == "3"
    assert len(service.calls) == 5
    wait_until(lambda: all(call.cancelled for call in service.calls), WAIT_S, "the others are cancelled")
