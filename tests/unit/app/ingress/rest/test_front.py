"""The HTTP front over real connections: inference, routes and errors."""

import asyncio
import json
from typing import Any

import pytest

from app.core.errors import ErrorCode, InferError, unavailable
from app.core.tensors import InferResponse
from app.ingress.metrics.front import MetricsFront
from app.ingress.rest.front import HttpFront
from tests.hints import hint, tritons
from tests.unit.app.http_fakes import FakeService
from tests.unit.app.ingress.http_peer import (
    INFER,
    Peer,
    Run,
    fronted,
    infer_document,
    json_infer,
    request,
)
from tests.waiting import until


def test_golden_exchange(run: Run) -> None:
    async def scenario() -> None:
        async with fronted() as front:
            peer = await front.connect()
            await peer.send(json_infer(id="a"))
            body = (
                b'{"id":"a","model_name":"identity","model_version":"1","outputs":'
                b'[{"name":"OUTPUT0","datatype":"FP32","shape":[1,2],"data":[1.0,2.0]}]}'
            )
            wanted = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(
                body
            )
            assert await peer.reader.readexactly(len(wanted + body)) == wanted + body

    run(scenario())


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GARBAGE\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000, 431),
        (b"GET /" + b"a" * 100_000, 431),
        (b"POST / HTTP/1.1\r\nContent-Length: 5000000000\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", 400),
        (  # read by its chunks; what follows them is no second request
            b"POST /none HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            b"GET /v2 HTTP/1.1\r\n\r\n",
            404,
        ),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n", 413),
    ],
)
def test_unreadable_requests_are_answered_and_closed(run: Run, data: bytes, status: int) -> None:
    async def scenario() -> None:
        async with fronted() as front:
            peer = await front.connect()
            assert (await peer.ask(data))[0] == status
            assert await peer.at_end()
            assert (await (await front.connect()).ask(json_infer()))[0] == 200

    run(scenario())


ROUTES = [
    ("GET", "//", 404, "Not Found"),
    ("GET", "/v2/", 404, "Not Found"),
    ("GET", "/v2/health/live/", 404, "Not Found"),
    ("POST", "/v2/health/live", 405, "Method Not Allowed"),
    ("GET", INFER, 405, "Method Not Allowed"),
    ("PUT", INFER, 405, "Method Not Allowed"),
    ("POST", INFER + "/", 404, "Not Found"),
    ("POST", "/v2/models/identity/versions/x/infer", 404, "Not Found"),
    ("POST", "/v2/models/identity/versions//infer", 404, "Not Found"),
    ("POST", "/v2/models/a%2Fb/infer", 404, "Request for unknown model: 'a%2Fb' is not found"),
    ("POST", "/v2/models/none/infer", 404, "Request for unknown model: 'none' is not found"),
    (
        "POST",
        "/v2/models/identity/versions/9/infer",
        404,
        "Request for unknown model: 'identity' version 9 is not found",
    ),
    ("GET", "/v2/models/none", 404, "Request for unknown model: 'none' is not found"),
    ("GET", "/v2/models/identity/versions/x", 404, "Not Found"),
    ("GET", "/redoc", 404, "Not Found"),
    ("GET", "/openapi.yaml", 404, "Not Found"),
    ("DELETE", "/v2", 405, "Method Not Allowed"),
]


def test_unknown_paths_and_methods(run: Run) -> None:
    async def scenario() -> None:
        async with fronted() as front:
            peer = await front.connect()
            for method, path, status, message in ROUTES:
                found, headers, body = await peer.ask(request(path, method=method))
                text = json.loads(body)["error"]
                assert (path, found, tritons(text)) == (path, status, message)
                assert headers["content-type"] == "application/json"
            await peer.send(request("/v2", method="HEAD"))
            assert (await peer.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 405")
            assert (await peer.ask(request("/v2?x=1", method="GET")))[0] == 200

    run(scenario())


def test_percent_encoded_names_of_models(run: Run) -> None:
    async def scenario() -> None:
        async with fronted() as front:
            peer = await front.connect()
            for path, method in [
                ("/v2/models/%69dentity", "GET"),
                ("/v2/models/%69dentity/ready", "GET"),
                ("/v2/models/identit%79/versions/1/config", "GET"),
            ]:
                assert (await peer.ask(request(path, method=method)))[0] == 200, path
            status, _, body = await peer.ask(json_infer().replace(b"/identity/", b"/%69dentity/"))
            assert (status, json.loads(body)["model_name"]) == (200, "identity")
            for written, shown in [("%E6%A8%A1", "模"), ("%FF", "%FF"), ("a%0Ab", "a%0Ab"), ("%", "%")]:
                _, _, body = await peer.ask(request(f"/v2/models/{written}", method="GET"))
                assert json.loads(body)["error"] == f"Request for unknown model: '{shown}' is not found"

    run(scenario())


HINTS = [
    ("GET", "/metrics", "metrics are at port 8002, path /metrics"),
    ("GET", "/v2/health/live/", "without the slash at its end"),
    ("POST", INFER + "/", "without the slash at its end"),
    ("GET", "/health", "/v2/health/ready"),
    ("GET", "/healthz", "/v2/health/ready"),
    ("GET", "/v2/health", "/v2/health/ready"),
    ("POST", "/v1/models/identity:predict", "--allow-tfserving"),
    ("POST", "/v1/chat/completions", "/v2/models/<model>/generate"),
    ("POST", "/predictions/identity", "--allow-torchserve"),
    ("POST", "/v2/models/identity/predict", "POST /v2/models/<model>/infer"),
    ("GET", "/models", "models are at /v2/models"),
    ("GET", "/v2/repository", "POST /v2/repository/index"),
    ("GET", "/v2/repository/index", "takes POST"),
    ("GET", INFER, "infer takes POST; GET /v2/models/<model> describes the inputs"),
    ("POST", "/v2/health/live", "takes GET"),
]


def test_paths_that_newcomers_try_say_where_it_is(run: Run) -> None:
    async def scenario() -> None:
        front = HttpFront(FakeService(), metrics_port=8002)
        peer = Peer(*await asyncio.open_connection("127.0.0.1", await front.start("127.0.0.1", 0)))
        for method, path, words in HINTS:
            status, _, body = await peer.ask(request(path, b"{}" if method == "POST" else b"", method=method))
            assert status in (404, 405)
            assert words in hint(json.loads(body)["error"]), path
        peer.close()
        await front.stop(1)

    run(scenario())


def test_a_misspelt_input_is_told_before_its_data(run: Run) -> None:
    async def scenario() -> None:
        async with fronted() as front:
            document = infer_document([1, 2])
            document["inputs"][0] |= {"name": "INPUTO", "shape": [1, 5]}
            asked = request(INFER, json.dumps(document).encode())
            status, _, answer = await (await front.connect()).ask(asked)
            text = json.loads(answer)["error"]
            assert status == 400
            assert tritons(text) == "unexpected inference input 'INPUTO' for model 'identity'"
            assert "did you mean 'INPUT0'?" in hint(text)

    run(scenario())


def test_infer_errors(run: Run) -> None:
    async def scenario() -> None:
        async with fronted() as front:
            peer = await front.connect()
            infer = json_infer()

            async def error(data: bytes) -> Any:
                status, _, body = await peer.ask(data)
                return status, json.loads(body)["error"]

            assert await error(request(INFER, b"{")) == (
                500,
                "failed to parse the request JSON buffer: Missing a name for object member. at 1",
            )
            over = request(INFER, b"{}", "Inference-Header-Content-Length: 3")
            assert await error(over) == (400, "inference header size should be in range (0, 2), got: 3")
            assert await error(request(INFER, b"{}", "Inference-Header-Content-Length: x")) == (
                400,
                "Unable to parse Inference-Header-Content-Length, got: x",
            )
            front.fake.failure = unavailable("no")
            assert await error(infer) == (503, "no")
            front.fake.failure = None
            front.fake.config.model_transaction_policy.decoupled = True
            assert await error(infer) == (
                501,
                "HTTP end point doesn't support models with decoupled transaction policy",
            )
            front.fake.config.model_transaction_policy.decoupled = False
            front.fake.submit = None  # type: ignore[assignment, method-assign]
            assert (await error(infer))[0] == 500

    run(scenario())


def test_overloaded_model_is_answered_with_the_time_to_retry(run: Run) -> None:
    async def scenario() -> None:
        async with fronted() as front:
            peer = await front.connect()
            for seconds, header in ((0.0, None), (0.01, "1"), (2.3, "3")):
                front.fake.failure = InferError(ErrorCode.UNAVAILABLE, "busy", retry_after_s=seconds)
                status, headers, body = await peer.ask(json_infer())
                assert (status, headers.get("retry-after")) == (503, header)
                assert json.loads(body) == {"error": "busy"}

    run(scenario())


def test_more_than_one_response_is_an_error(run: Run) -> None:
    async def scenario() -> None:
        service = FakeService()
        service.hold = True
        async with fronted(service) as front:
            for number, wanted in ((1, 200), (2, 500)):
                peer = await front.connect()
                await peer.send(json_infer())
                await service.asked()
                asked, sink = service.held.pop()
                answer = service.answer(asked)
                for _ in range(number):
                    sink(InferResponse(answer.model_name, "1", answer.outputs, final=False))
                sink(InferResponse(final=True))
                status, _, body = await peer.response()
                assert status == wanted
            assert json.loads(body) == {"error": "expected a single response, got 2"}

    run(scenario())


def test_disconnect_cancels(run: Run) -> None:
    async def scenario() -> None:
        service = FakeService()
        service.hold = True
        async with fronted(service) as front:
            peer = await front.connect()
            await peer.send(json_infer())
            await service.asked()
            peer.close()
            await until(lambda: service.calls[0].cancelled)
            request_, sink = service.held[0]
            sink(service.answer(request_))

    run(scenario())


def test_metrics_port(run: Run) -> None:
    async def scenario() -> None:
        async def collect() -> Any:
            return b"nv_inference_count 1\n"

        front = MetricsFront(collect)
        port = await front.start("127.0.0.1", 0)
        peer = Peer(*await asyncio.open_connection("127.0.0.1", port))
        for path in ("/metrics", "/metrics/"):
            status, headers, body = await peer.ask(request(path, method="GET"))
            assert (status, body) == (200, b"nv_inference_count 1\n")
            assert headers["content-type"] == "text/plain; charset=utf-8"
        assert (await peer.ask(request("/other", method="GET")))[::2] == (200, b"")
        assert (await peer.ask(request("/metrics")))[0] == 405
        peer.close()
        await front.stop(1)

    run(scenario())


def test_http_1_0(run: Run) -> None:
    async def scenario() -> None:
        async with fronted() as front:
            peer = await front.connect()
            kept = b"GET /v2 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
            status, headers, _ = await peer.ask(kept)
            assert (status, headers["connection"]) == (200, "Keep-Alive")
            assert (await peer.ask(b"GET /v2 HTTP/1.0\r\n\r\n"))[1]["connection"] == "close"
            assert await peer.at_end()

    run(scenario())
