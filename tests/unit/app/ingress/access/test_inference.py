"""Inference with tokens, by tritonclient: HTTP and gRPC, blocking, asyncio, and streams."""

import asyncio
import json
import queue
import urllib.request
from collections.abc import Callable
from functools import partial
from http.client import HTTPConnection
from typing import Any
from urllib.error import HTTPError

import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

from app.access.grants import Grants
from app.core.errors import invalid_arg
from tests.unit.app.ingress.access.guarded import MODULES, TOKENS, of
from tests.unit.app.ingress.running_fronts import WAIT_S, ZEROS, Running, infer, refusal, tensor

AIO_MODULES = {"http": tritonclient.http.aio, "grpc": tritonclient.grpc.aio}
STATUS = {
    "unauthenticated": {"http": "401", "grpc": "StatusCode.UNAUTHENTICATED"},
    "denied": {"http": "403", "grpc": "StatusCode.PERMISSION_DENIED"},
    "limited": {"http": "429", "grpc": "StatusCode.RESOURCE_EXHAUSTED"},
}
REFUSED = [
    ({}, "unauthenticated"),
    (of("nobody"), "unauthenticated"),
    ({"authorization": "Basic aW5mZXI="}, "unauthenticated"),
    (of("manage"), "denied"),
    (of("other"), "denied"),
]


@pytest.fixture
def ask(client: Any, protocol: str) -> Callable[..., Any]:
    """Infers by a client, with a copy of the headers, which tritonclient writes into."""

    def ask(headers: dict[str, str], **options: Any) -> Any:
        return infer(client, MODULES[protocol], headers=dict(headers), **options)

    return ask


@pytest.mark.parametrize("header", ["Bearer infer", "bearer infer", "infer"])
def test_a_token_is_accepted_with_and_without_its_scheme(ask: Any, header: str) -> None:
    for _ in range(2):
        assert ask({"authorization": header}) == ZEROS


def test_the_name_of_a_header_has_no_case(running: Running) -> None:
    with tritonclient.http.InferenceServerClient(running.http) as client:
        assert infer(client, tritonclient.http, headers={"AUTHORIZATION": "Bearer infer"}) == ZEROS


@pytest.mark.parametrize(("headers", "reason"), REFUSED)
def test_others_are_refused(
    ask: Any, running: Running, protocol: str, headers: dict[str, str], reason: str
) -> None:
    status, text = refusal(partial(ask, headers))
    assert status == STATUS[reason][protocol] and "token" in text
    assert running.service.requests == 0


@pytest.mark.parametrize(("headers", "reason"), REFUSED)
def test_aio_clients_are_refused_and_accepted(
    running: Running, protocol: str, headers: dict[str, str], reason: str
) -> None:
    async def scenario() -> Any:
        async with AIO_MODULES[protocol].InferenceServerClient(getattr(running, protocol)) as client:
            given = [tensor(MODULES[protocol])]
            with pytest.raises(InferenceServerException) as refused:
                await client.infer("identity", given, headers=dict(headers))
            assert refused.value.status() == STATUS[reason][protocol]
            return await client.infer("identity", given, headers=of("infer"))

    assert asyncio.run(scenario()).as_numpy("OUTPUT0").tolist() == ZEROS


def test_plugins_of_clients_bring_tokens(running: Running, client: Any, protocol: str) -> None:
    class Bearer:
        def __call__(self, request: Any) -> None:
            request.headers["authorization"] = "Bearer infer"

    client.register_plugin(Bearer())
    assert infer(client, MODULES[protocol]) == ZEROS
    client.unregister_plugin()
    assert refusal(partial(infer, client, MODULES[protocol]))[0] == STATUS["unauthenticated"][protocol]


def test_a_rate_is_limited_and_http_says_when_to_come_again(
    ask: Any, running: Running, protocol: str
) -> None:
    assert ask(of("slow")) == ask(of("slow")) == ZEROS
    status, text = refusal(partial(ask, of("slow")))
    assert status == STATUS["limited"][protocol] and "2/h" in text
    assert ask(of("infer")) == ZEROS, "others are not limited"
    request = urllib.request.Request(
        f"http://{running.http}/v2/models/identity/infer",
        b'{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1]}]}',
        of("slow"),
    )
    with pytest.raises(HTTPError) as limited:
        urllib.request.urlopen(request, timeout=WAIT_S)
    with limited.value as answer:
        assert answer.code == 429 and 1700 < int(answer.headers["Retry-After"]) <= 1800
        assert "try again" in json.loads(answer.read())["error"]


def test_inferences_in_flight_are_limited(ask: Any, running: Running, protocol: str) -> None:
    running.service.hold = True
    # gRPC's client has threads; that of HTTP sends nothing while this thread waits otherwise.
    with tritonclient.grpc.InferenceServerClient(running.grpc) as other:
        results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        put = lambda result, error: results.put(error or result)  # noqa: E731
        other.async_infer("identity", [tensor(tritonclient.grpc)], put, headers=of("single"))
        running.loop.call(running.service.asked())
        status, text = refusal(partial(ask, of("single")))
        assert status == STATUS["limited"][protocol] and "1 inferences in flight" in text
        running.service.hold = False
        request, sink = running.service.held.pop()
        running.loop.loop.call_soon_threadsafe(sink, running.service.answer(request))
        assert results.get(timeout=WAIT_S).as_numpy("OUTPUT0").tolist() == ZEROS
    assert ask(of("single")) == ZEROS


def test_a_failed_inference_is_no_longer_in_flight(ask: Any, running: Running) -> None:
    running.service.failure = invalid_arg("no")
    for _ in range(3):
        assert refusal(partial(ask, of("single")))[1] == "no"


def test_an_inference_that_was_not_submitted_is_not_in_flight(
    ask: Any, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit(*_: Any) -> None:
        raise invalid_arg("unloaded meanwhile")

    with monkeypatch.context() as patched:
        patched.setattr(running.service, "submit", submit)
        assert refusal(partial(ask, of("single")))[1] == "unloaded meanwhile"
    assert ask(of("single")) == ZEROS


def test_a_changed_file_applies_to_open_connections(
    ask: Any, opened: tuple[Running, Grants], protocol: str
) -> None:
    running, grants = opened
    assert ask(of("infer")) == ZEROS

    async def replace(tokens: Any) -> None:
        grants.replace(tokens)

    running.loop.call(replace(TOKENS[2:]))
    assert refusal(partial(ask, of("infer")))[0] == STATUS["unauthenticated"][protocol]
    running.loop.call(replace(TOKENS))
    assert ask(of("infer")) == ZEROS


def test_requests_are_counted_by_token_and_outcome(
    ask: Any, opened: tuple[Running, Grants], protocol: str
) -> None:
    counted = opened[1].counted
    for headers in (of("infer"), of("infer"), of("slow"), of("slow")):
        ask(headers)
    for headers in (of("slow"), of("other"), {}, of("manage")):
        refusal(partial(ask, headers))
    found = {
        name: (outcomes.ok, outcomes.denied, outcomes.limited)
        for name, outcomes in counted.items()
        if outcomes.ok or outcomes.denied or outcomes.limited
    }
    assert found == {
        "infer": (2, 0, 0),
        "slow": (2, 0, 1),
        "other-models": (0, 1, 0),
        "anonymous": (0, 1, 0),
        "manage": (0, 1, 0),
    }


class Streamed:
    """The responses of a gRPC stream."""

    def __init__(self, client: Any, headers: dict[str, str]) -> None:
        self.client = client
        self.results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        client.start_stream(lambda result, error: self.results.put(error or result), headers=headers)

    def ask(self, model: str = "identity") -> Any:
        self.client.async_stream_infer(model, [tensor(tritonclient.grpc)])
        return self.results.get(timeout=WAIT_S)


def test_streams_ask_for_tokens_and_count_each_request(opened: tuple[Running, Grants]) -> None:
    running, grants = opened
    with tritonclient.grpc.InferenceServerClient(running.grpc) as client:
        stream = Streamed(client, of("slow"))
        for _ in range(2):
            assert stream.ask().as_numpy("OUTPUT0").tolist() == ZEROS
        limited = stream.ask()
        assert isinstance(limited, InferenceServerException) and "2/h" in limited.message()
        client.stop_stream()
        stream = Streamed(client, of("infer"))
        assert "is not for the model 'b'" in stream.ask("b").message()
        assert stream.ask().as_numpy("OUTPUT0").tolist() == ZEROS
        grants.replace(TOKENS[2:])
        assert "a valid token is required" in stream.ask().message()
        client.stop_stream()
    assert grants.counted["slow"].limited == 1 and grants.counted["infer"].denied == 2


@pytest.mark.parametrize(("headers", "reason"), REFUSED[:4])
def test_streams_without_a_right_do_not_open(running: Running, headers: dict[str, str], reason: str) -> None:
    with tritonclient.grpc.InferenceServerClient(running.grpc) as client:
        results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        client.start_stream(lambda result, error: results.put(error or result), headers=headers)
        result = results.get(timeout=WAIT_S)
        assert result.status() == STATUS[reason]["grpc"]


def test_a_body_sent_to_be_refused_leaves_the_connection_usable(running: Running) -> None:
    connection = HTTPConnection(running.http, timeout=WAIT_S)
    try:
        for headers, status in ((of("nobody"), 401), (of("infer"), 200)):
            body = b'{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1]}]}'
            connection.request("POST", "/v2/models/identity/infer", body, headers)
            answer = connection.getresponse()
            assert (answer.status, bool(answer.read())) == (status, True)
            assert answer.headers["WWW-Authenticate"] == ("Bearer" if status == 401 else None)
    finally:
        connection.close()


@pytest.mark.parametrize("verb", ["generate", "generate_stream"])
def test_generate_is_guarded(running: Running, verb: str) -> None:
    connection = HTTPConnection(running.http, timeout=WAIT_S)
    try:
        for headers, status in ((of("other"), 403), (of("infer"), 200)):
            body = b'{"INPUT0":[1.0]}'
            connection.request("POST", f"/v2/models/identity/{verb}", body, headers)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == status
    finally:
        connection.close()
