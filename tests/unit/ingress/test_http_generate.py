import asyncio
import gzip
import json
import time
from contextlib import asynccontextmanager

import numpy as np
import pytest

from app.core.errors import ErrorCode, FailureReason, InferError, invalid_arg
from app.core.tensors import InferResponse, Tensor, failed
from tests.unit.ingress.http_fakes import FakeService
from tests.unit.ingress.test_http_front import fronted, request, run

__all__ = ["run"]

GENERATE = "/v2/models/identity/generate"
STREAM = "/v2/models/identity/generate_stream"
EXACTLY_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates "
    "various number of responses"
)
LAST = InferResponse("identity", "1")
BROKEN = InferError(ErrorCode.INVALID_ARG, "broken", FailureReason.BACKEND)
JSON, EVENTS = "application/json", "text/event-stream; charset=utf-8"


def asking(path=GENERATE, body=b'{"INPUT0":1}', *headers):
    return request(path, body, *headers)


def numbered(number, **fields):
    return InferResponse("identity", "1", (Tensor.of("N", np.array([number])),), **{"final": False, **fields})


def sized(size, **fields):
    output = Tensor.of("N", np.zeros(size, np.int8))
    return InferResponse("identity", "1", (output,), **{"final": False, **fields})


class Asked:
    """A request that reached the model, to be answered by the test."""

    def __init__(self, service):
        self.request, self._sink = service.held.pop()
        self.call = service.calls[-1]

    def answer(self, *responses):
        for response in responses:
            self._sink(response)

    async def cancelled(self, within=0.1):
        async with asyncio.timeout(within):
            while not self.call.cancelled:
                await asyncio.sleep(0.001)


@asynccontextmanager
async def decoupled(**limits):
    """A front before a decoupled model that the test plays, and a connection."""
    service = FakeService()
    service.hold = True
    service.config.model_transaction_policy.decoupled = True
    async with fronted(service, **limits) as front:
        yield front, await front.connect()


async def asked(front, peer, data):
    await peer.send(data)
    async with asyncio.timeout(5):
        while not front.fake.held:
            await asyncio.sleep(0.001)
    return Asked(front.fake)


async def head(peer):
    """Return status and headers of a response that comes in chunks."""
    lines = (await peer.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    return int(lines[0].split()[1]), {
        k.lower(): v for k, _, v in (line.partition(": ") for line in lines[1:-2])
    }


async def chunk(peer):
    size = int(await peer.reader.readuntil(b"\r\n"), 16)
    return (await peer.reader.readexactly(size + 2))[:-2]


async def events(peer):
    """Return the documents of the chunks until the end, one event in each."""
    found = []
    while data := await chunk(peer):
        assert data.startswith(b"data: ") and data.endswith(b"\n\n") and data.count(b"\n") == 2
        found.append(json.loads(data[6:-2]))
    return found


def numbers(documents):
    return [document["N"] for document in documents]


def test_golden_exchanges(run):
    async def scenario():
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


def test_tensors_and_parameters_reach_the_model(run):
    async def scenario():
        async with decoupled() as (front, peer):
            body = b'{"INPUT0":[1,2],"x":3,"parameters":{"y":"z"}}'
            got = (await asked(front, peer, asking("/v2/models/identity/versions/1/generate", body))).request
            assert (got.model_version, got.parameters) == ("1", {"x": 3, "y": "z"})
            assert got.inputs == (Tensor("INPUT0", "FP32", (1, 2), np.array([1, 2], np.float32).tobytes()),)

    run(scenario())


@pytest.mark.parametrize(
    ("responses", "status"),
    [
        ([LAST], 200),
        ([numbered(1), numbered(2)], 200),
        ([numbered(1), failed(BROKEN)], 200),
        ([InferResponse(error=BROKEN, final=False), numbered(2)], 400),
        ([InferResponse(error=BROKEN, final=False), failed(BROKEN)], 400),
    ],
)
def test_the_first_response_decides_the_status_of_too_few_or_too_many(run, responses, status):
    async def scenario():
        async with decoupled() as (front, peer):
            model = await asked(front, peer, asking())
            model.answer(*responses)
            found, headers, body = await peer.response()
            assert (found, headers["content-type"]) == (status, JSON)
            assert json.loads(body) == {"error": EXACTLY_ONE}
            assert model.call.cancelled, "the rest is not waited for, and the model is told"
            assert (await peer.ask(request("/v2/health/live", method="GET")))[0] == 200

    run(scenario())


@pytest.mark.parametrize("responses", [[numbered(1), LAST], [numbered(1, final=True)]])
def test_generate_answers_with_the_one_response(run, responses):
    async def scenario():
        async with decoupled() as (front, peer):
            model = await asked(front, peer, asking())
            model.answer(*responses)
            found, headers, body = await peer.response()
            assert (found, headers["content-type"], json.loads(body)["N"]) == (200, JSON, 1)
            assert not model.call.cancelled

    run(scenario())


def test_errors_of_the_model_in_generate(run):
    async def scenario():
        async with decoupled() as (front, peer):
            for error in (failed(BROKEN), InferResponse(error=BROKEN, final=False)):
                (await asked(front, peer, asking())).answer(error, *([] if error.final else [LAST]))
                status, _, body = await peer.response()
                assert (status, json.loads(body)) == (400, {"error": "broken"})

    run(scenario())


@pytest.mark.parametrize("count", [0, 1, 5, 2000])
def test_every_response_is_an_event(run, count):
    async def scenario():
        async with decoupled() as (front, peer):
            model = await asked(front, peer, asking(STREAM))
            model.answer(*map(numbered, range(count)), LAST)
            status, headers = await head(peer)
            assert (status, headers["content-type"]) == (200, EVENTS)
            assert numbers(await events(peer)) == list(range(count))
            assert (await peer.ask(request("/v2/health/live", method="GET")))[0] == 200

    run(scenario())


def test_an_event_leaves_when_its_response_comes(run):
    async def scenario():
        async with decoupled() as (front, peer):
            model = await asked(front, peer, asking(STREAM))
            model.answer(numbered(0))
            assert (await head(peer))[0] == 200
            for number in range(1, 4):
                assert json.loads((await chunk(peer))[6:])["N"] == number - 1
                model.answer(numbered(number))
            model.answer(LAST)
            assert numbers(await events(peer)) == [3]

    run(scenario())


def test_a_final_response_that_says_something_is_an_event(run):
    async def scenario():
        async with decoupled() as (front, peer):
            model = await asked(front, peer, asking(STREAM))
            model.answer(InferResponse("identity", "1", parameters={"tokens": 3}))
            await head(peer)
            assert await events(peer) == [{"model_name": "identity", "model_version": "1", "tokens": 3}]

    run(scenario())


def test_the_first_response_decides_the_status(run):
    async def scenario():
        async with decoupled() as (front, peer):
            (await asked(front, peer, asking(STREAM))).answer(failed(BROKEN))
            status, headers = await head(peer)
            assert (status, headers["content-type"]) == (400, EVENTS)
            assert await events(peer) == [{"error": "broken"}]

            unprintable = InferResponse("identity", "1", (Tensor("N", "FP16", (1,), b"\0\0"),), final=False)
            model = await asked(front, peer, asking(STREAM))
            model.answer(numbered(1), unprintable, InferResponse(error=BROKEN, final=False), numbered(2))
            model.answer(failed(BROKEN))
            assert (await head(peer))[0] == 200
            first, second, third, fourth, last = await events(peer)
            assert (first["N"], fourth["N"]) == (1, 2)
            assert second["error"].startswith("sending FP16 data via JSON is not supported")
            assert third == last == {"error": "broken"}

    run(scenario())


def test_what_no_model_saw_is_refused_without_a_stream(run):
    async def scenario():
        async with decoupled() as (front, peer):
            (await asked(front, peer, asking(STREAM))).answer(failed(invalid_arg("expected 2 inputs")))
            status, headers, body = await peer.response()
            assert (status, headers["content-type"]) == (400, JSON)
            assert json.loads(body) == {"error": "expected 2 inputs"}

    run(scenario())


def test_an_unexpected_failure_is_told_without_its_text(run):
    async def scenario():
        async with decoupled() as (front, peer):
            odd = InferResponse("identity", "1", (Tensor("N", "NONE", (1,), b""),), final=False)
            for path, read in ((GENERATE, peer.response), (STREAM, lambda: head(peer))):
                (await asked(front, peer, asking(path))).answer(odd, LAST)
                assert (await read())[0] == 500
            assert await events(peer) == [
                {"error": "unexpected error, the request could not be answered"},
            ]

    run(scenario())


@pytest.mark.parametrize("path", [GENERATE, STREAM])
def test_a_client_that_leaves_cancels(run, path):
    async def scenario():
        async with decoupled() as (front, peer):
            model = await asked(front, peer, asking(path))
            if path == STREAM:
                model.answer(numbered(0))
                await head(peer)
            peer.close()
            await model.cancelled()
            model.answer(numbered(1), failed(BROKEN))  # what was under way harms nobody
            async with asyncio.timeout(1):
                while front.tasks:
                    await asyncio.sleep(0.001)

    run(scenario())


def test_a_client_that_leaves_without_reading_cancels(run):
    async def scenario():
        async with decoupled(write_buffer_bytes=1000) as (front, peer):
            model = await asked(front, peer, asking(STREAM))
            model.answer(*[sized(50_000)] * 400)
            await asyncio.sleep(0.05)
            peer.writer.transport.abort()
            await model.cancelled(1)
            async with asyncio.timeout(1):
                while front.tasks or front.connections:
                    await asyncio.sleep(0.001)

    run(scenario())


def test_a_slow_reader_gets_everything_in_order(run):
    async def scenario():
        async with decoupled(write_buffer_bytes=10_000) as (front, peer):
            model = await asked(front, peer, asking(STREAM))
            # Long ones are printed by a thread; the order stays.
            sizes = [1, 300_000, 2, 3, 300_000, 4, 100_000] * 10
            model.answer(*map(sized, sizes), LAST)
            await asyncio.sleep(0.05)
            other = await front.connect()
            assert (await other.ask(request("/v2/health/live", method="GET")))[0] == 200
            await head(peer)
            found = [np.size(document["N"]) for document in await events(peer)]
            assert found == sizes

    run(scenario())


@pytest.mark.parametrize("limits", [{"stream_responses": 50}, {"stream_bytes": 50 * 50_000}])
def test_what_waits_for_a_slow_reader_is_bounded(run, limits):
    async def scenario():
        async with decoupled(write_buffer_bytes=1000, **limits) as (front, peer):
            model = await asked(front, peer, asking(STREAM))
            sent = 0
            while not model.call.cancelled:
                model.answer(sized(50_000))
                sent += 1
                assert sent < 1000
                await asyncio.sleep(0)
            await head(peer)
            *full, last = await events(peer)
            assert last == {"error": "the stream's responses are read too slowly"}
            assert 50 <= len(full) < sent
            assert (await peer.ask(request("/v2/health/live", method="GET")))[0] == 200

    run(scenario())


def test_http_1_0_gets_plain_events_and_the_end(run):
    async def scenario():
        async with decoupled() as (front, peer):
            body = b'{"INPUT0":1}'
            lines = f"POST {STREAM} HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: {len(body)}\r\n\r\n"
            model = await asked(front, peer, lines.encode() + body)
            model.answer(numbered(1), numbered(2), LAST)
            status, headers = await head(peer)
            assert (status, headers["connection"]) == (200, "close")
            assert "transfer-encoding" not in headers
            text = b'data: {"N":%d,"model_name":"identity","model_version":"1"}\n\n'
            assert await peer.reader.read() == text % 1 + text % 2

    run(scenario())


def test_a_stream_ends_before_the_server_does(run):
    async def scenario():
        async with decoupled() as (front, peer):
            model = await asked(front, peer, asking(STREAM))
            model.answer(numbered(1))
            await head(peer)
            stopping = asyncio.create_task(front.stop(5))
            await asyncio.sleep(0.01)
            model.answer(numbered(2), LAST)
            assert numbers(await events(peer)) == [1, 2]
            assert await peer.at_end()
            await asyncio.wait_for(stopping, 1)

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


def test_paths_and_methods(run):
    async def scenario():
        async with fronted() as front:
            peer = await front.connect()
            for method, path, status, message in ROUTES:
                found, headers, body = await peer.ask(request(path, b"{}", method=method))
                assert (path, found, json.loads(body)) == (path, status, {"error": message})
                assert headers["content-type"] == JSON
            await peer.send(request(STREAM, method="HEAD"))
            assert (await head(peer))[0] == 405
            assert (await peer.ask(asking(GENERATE + "?x=1")))[0] == 200

    run(scenario())


@pytest.mark.parametrize("path", [GENERATE, STREAM])
def test_refused_requests(run, path):
    async def scenario():
        async with fronted() as front:
            peer = await front.connect()
            front.max_input_size = 100_000
            for coding, body in (("gzip", gzip.compress(b'{"INPUT0":1}')), ("br", b"x")):
                status, _, answer = await peer.ask(asking(path, body, f"Content-Encoding: {coding}"))
                assert (status, json.loads(answer)["error"]) == (
                    400,
                    "Unsupported content-encoding, only 'identity' is supported.",
                )
            for body, status, text in (
                (
                    b"{",
                    500,
                    "failed to parse the request JSON buffer: Missing a name for object member. at 1",
                ),
                (b'{"x":[]}', 400, "parameter 'x' has invalid type."),
                (b" " * 50_000 + b"{", 500, "failed to parse the request JSON buffer:"),
                (b" " * 100_001, 400, "request JSON size of 100001 bytes exceeds the maximum allowed input"),
            ):
                found, headers, answer = await peer.ask(asking(path, body))
                assert (found, headers["content-type"]) == (status, JSON)
                assert json.loads(answer)["error"].startswith(text)
            identity = asking(
                GENERATE, b'{"INPUT0":1}', "Content-Encoding: identity", "Accept-Encoding: gzip"
            )
            status, headers, _ = await peer.ask(identity)
            assert (status, "content-encoding" in headers) == (200, False)

    run(scenario())


def test_long_requests_and_responses(run):
    async def scenario():
        async with fronted() as front:
            peer = await front.connect()
            values = list(range(100_000))
            body = json.dumps({"INPUT0": values}).encode()
            assert json.loads((await peer.ask(asking(GENERATE, body)))[2])["OUTPUT0"] == values
            await peer.send(asking(STREAM, body))
            await head(peer)
            assert (await events(peer))[0]["OUTPUT0"] == values

    run(scenario())


def test_a_request_that_no_replica_takes(run):
    async def scenario():
        async with fronted() as front:
            peer = await front.connect()

            def refuse(_request, _sink):
                raise InferError(ErrorCode.UNAVAILABLE, "not at ready state")

            front.fake.submit = refuse
            for path in (GENERATE, STREAM):
                status, headers, _ = await peer.ask(asking(path))
                assert (status, headers["content-type"]) == (503, JSON)

    run(scenario())


def test_many_streams_at_once(run):
    async def scenario():
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
