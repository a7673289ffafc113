"""The generate extension over real connections: what becomes a request, and what answers it."""

import asyncio
import json
import time
from typing import Any

import pytest

from app.core.errors import ErrorCode, InferError
from app.core.tensors import InferResponse, Tensor
from tests.hints import tritons
from tests.unit.app.ingress.http_peer import Run, fronted, request
from tests.unit.app.ingress.rest.generate_requests import (
    BROKEN,
    EXACTLY_ONE,
    GENERATE,
    JSON,
    LAST,
    STREAM,
    asked,
    asking,
    decoupled,
    events,
    head,
    numbered,
    numbers,
    told,
)


def test_golden_exchanges(run: Run) -> None:
    async def scenario() -> None:
        async with fronted() as front:
            peer = await front.connect()
            await peer.send(asking(GENERATE, b'{"id":"a","INPUT0":[1,2]}') + asking(STREAM))
            document = b'{"OUTPUT0":[1.0,2.0],"id":"a","model_name":"identity","model_version":"1"}'
            one = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(
                document
            )
            event = b'data: {"OUTPUT0":1.0,"model_name":"identity","model_version":"1"}\n\n'
            stream = (
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"
            ) % (len(event), event)
            wanted = one + document + stream
            assert await peer.reader.readexactly(len(wanted)) == wanted

    run(scenario())


@pytest.mark.parametrize(
    ("responses", "status"),
    [
        ([LAST], 200),
        ([numbered(1), numbered(2)], 200),
        ([numbered(1), told(BROKEN)], 200),
        ([told(BROKEN, final=False), numbered(2)], 400),
        ([told(BROKEN, final=False), told(BROKEN)], 400),
    ],
)
def test_the_first_response_decides_the_status_of_too_few_or_too_many(
    run: Run, responses: list[InferResponse], status: int
) -> None:
    async def scenario() -> None:
        async with decoupled() as (front, peer):
            model = await asked(front, peer, asking())
            model.answer(*responses)
            found, headers, body = await peer.response()
            assert (found, headers["content-type"]) == (status, JSON)
            assert json.loads(body) == {"error": EXACTLY_ONE}
            assert model.call.cancelled, "the rest is not waited for, and the model is told"
            assert (await peer.ask(request("/v2/health/live", method="GET")))[0] == 200

    run(scenario())


def test_unexpected_exception_is_answered_without_its_text(run: Run) -> None:
    async def scenario() -> None:
        async with decoupled() as (front, peer):
            odd = InferResponse("identity", "1", (Tensor("N", "NONE", (1,), b""),), final=False)
            for path, read in ((GENERATE, peer.response), (STREAM, lambda: head(peer))):
                (await asked(front, peer, asking(path))).answer(odd, LAST)
                assert (await read())[0] == 500
            assert await events(peer) == [
                {"error": "unexpected error, the request could not be answered"},
            ]

    run(scenario())


ROUTES = [
    ("POST", GENERATE + "/", 404, "Not Found"),
    ("POST", "/v2/models/identity/generate_streams", 404, "Not Found"),
    ("POST", "/v2/models/identity/versions/x/generate", 404, "Not Found"),
    ("GET", GENERATE, 405, "Method Not Allowed"),
    ("PUT", STREAM, 405, "Method Not Allowed"),
    ("POST", "/v2/models/none/generate", 404, "Request for unknown model: 'none' is not found"),
    (
        "POST",
        "/v2/models/identity/versions/9/generate_stream",
        404,
        "Request for unknown model: 'identity' version 9 is not found",
    ),
]


def test_paths_and_methods(run: Run) -> None:
    async def scenario() -> None:
        async with fronted() as front:
            peer = await front.connect()
            for method, path, status, message in ROUTES:
                found, headers, body = await peer.ask(request(path, b"{}", method=method))
                text = json.loads(body)["error"]
                assert (path, found, tritons(text)) == (path, status, message)
                assert headers["content-type"] == JSON
            await peer.send(request(STREAM, method="HEAD"))
            assert (await head(peer))[0] == 405
            assert (await peer.ask(asking(GENERATE + "?x=1")))[0] == 200

    run(scenario())


def test_long_requests_and_responses(run: Run) -> None:
    async def scenario() -> None:
        async with fronted() as front:
            peer = await front.connect()
            values = list(range(100_000))
            body = json.dumps({"INPUT0": values}).encode()
            assert json.loads((await peer.ask(asking(GENERATE, body)))[2])["OUTPUT0"] == values
            await peer.send(asking(STREAM, body))
            await head(peer)
            assert (await events(peer))[0]["OUTPUT0"] == values

    run(scenario())


def test_request_without_a_replica_is_refused(run: Run) -> None:
    async def scenario() -> None:
        async with fronted() as front:
            peer = await front.connect()

            def refuse(_entry: Any, _request: Any, _sink: Any) -> None:
                raise InferError(ErrorCode.UNAVAILABLE, "not at ready state")

            front.fake.submit = refuse  # type: ignore[assignment, method-assign]
            for path in (GENERATE, STREAM):
                status, headers, _ = await peer.ask(asking(path))
                assert (status, headers["content-type"]) == (503, JSON)

    run(scenario())


def test_many_streams_at_once(run: Run) -> None:
    async def scenario() -> None:
        async with decoupled() as (front, _):
            peers = [await front.connect() for _ in range(50)]
            models = [await asked(front, peer, asking(STREAM)) for peer in peers]
            began = time.monotonic()
            for number in range(20):
                for model in models:
                    model.answer(numbered(number))
                await asyncio.sleep(0)
            for model, peer in zip(models, peers, strict=True):
                model.answer(LAST)
                await head(peer)
                assert numbers(await events(peer)) == list(range(20))
            assert time.monotonic() - began < 5

    run(scenario())
