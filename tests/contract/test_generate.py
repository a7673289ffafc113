"""The generate extension over HTTP: ordinary and decoupled models, errors, clients that leave or lag."""

import http.client
import json
import socket
import time
from contextlib import closing
from typing import Any

import pytest

from tests.contract.conftest import Addresses
from tests.contract.wire import TIMEOUT_S, Answer, Wire, check_refusal

EVENTS = "text/event-stream; charset=utf-8"
EXACTLY_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates "
    "various number of responses"
)
SIMPLE = {"INPUT0": list(range(16)), "INPUT1": [1] * 16}
HELLO = {"PROMPT": "hello world", "STREAM": True}


def generate(wire: Wire, model: str, body: object, verb: str = "generate", **headers: str) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return wire.send("POST", f"/v2/models/{model}/{verb}", data, headers)


def stream(wire: Wire, model: str, body: object) -> Answer:
    return generate(wire, model, body, "generate_stream")


def documents(answer: Answer) -> list[dict[str, Any]]:
    assert answer.headers["Content-Type"] == EVENTS
    *blocks, rest = answer.body.split(b"\n\n")
    assert rest == b""
    assert all(block.startswith(b"data: ") for block in blocks)
    return [json.loads(block[6:]) for block in blocks]


def repeat(*values: int, delay_ms: int = 0) -> dict[str, Any]:
    return {"IN": list(values), "DELAY": [delay_ms] * len(values), "WAIT": 0}


def check_simple(wire: Wire) -> None:
    """The same connection answers an ordinary request."""
    assert generate(wire, "simple", SIMPLE).json["OUTPUT0"] == list(range(1, 17))
    assert wire.is_same_connection()


def test_ordinary_model(wire: Wire) -> None:
    answer = generate(wire, "simple", {"id": "7", **SIMPLE})
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    sums, differences = list(range(1, 17)), list(range(-1, 15))
    golden = {
        "OUTPUT0": sums,
        "OUTPUT1": differences,
        "id": "7",
        "model_name": "simple",
        "model_version": "1",
    }
    assert answer.body == json.dumps(golden, separators=(",", ":")).encode()
    assert documents(stream(wire, "simple", {"id": "7", **SIMPLE})) == [golden]
    check_simple(wire)


def test_version_in_the_path(wire: Wire) -> None:
    assert generate(wire, "simple/versions/1", SIMPLE).json["model_version"] == "1"
    check_refusal(
        generate(wire, "simple/versions/9", SIMPLE),
        404,
        "Request for unknown model: 'simple' version 9 is not found",
    )


def test_strings(wire: Wire) -> None:
    text = 'Grüße\n"\\\u2028🎉'
    assert generate(wire, "simple_identity", {"INPUT0": text}).json["OUTPUT0"] == text
    assert generate(wire, "simple_identity", {"INPUT0": [text, ""]}).json["OUTPUT0"] == [text, ""]
    assert documents(stream(wire, "simple_identity", {"INPUT0": text}))[0]["OUTPUT0"] == text
    foreign = generate(wire, "simple_identity", b'{"INPUT0":"a\xffb"}')
    assert foreign.body.startswith(b'{"OUTPUT0":"a\xffb",')


def test_literals_and_more_rows_than_one(wire: Wire) -> None:
    answer = generate(wire, "identity_fp32", b'{"INPUT0":[NaN,Infinity,-Infinity,0.1]}')
    assert b'"OUTPUT0":[NaN,Infinity,-Infinity,0.10000000149011612]' in answer.body
    both = generate(wire, "simple", {"INPUT0": [1] * 32, "INPUT1": [2] * 32})
    assert both.json["OUTPUT0"] == [3] * 32


@pytest.mark.parametrize("count", [0, 1, 3, 500])
def test_stream_of_a_decoupled_model(wire: Wire, count: int) -> None:
    answer = stream(wire, "repeat_int32", {"id": "r", **repeat(*range(count))})
    assert answer.status == 200
    assert documents(answer) == [
        {"IDX": n, "OUT": n, "id": "r", "model_name": "repeat_int32", "model_version": "1"}
        for n in range(count)
    ]
    check_simple(wire)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_generate_of_a_decoupled_model(wire: Wire, count: int) -> None:
    answer = generate(wire, "repeat_int32", repeat(*range(7, 7 + count)))
    if count == 1:
        assert (answer.status, answer.json["OUT"]) == (200, 7)
    else:
        check_refusal(answer, 200, EXACTLY_ONE)
    check_simple(wire)


@pytest.mark.parametrize("streams", [True, False])
def test_one_response_with_or_without_an_empty_last_one(wire: Wire, streams: bool) -> None:
    body = {**HELLO, "STREAM": streams}
    assert generate(wire, "mock_llm", body).json["TEXT"] == "hello world"
    (only,) = documents(stream(wire, "mock_llm", body))
    assert only["TEXT"] == "hello world"


def test_events_leave_one_by_one(server: Addresses) -> None:
    with closing(http.client.HTTPConnection(server.http, timeout=TIMEOUT_S)) as connection:
        body = json.dumps({**HELLO, "parameters": {"REPETITION": 4, "DELAY": 200}})
        connection.request("POST", "/v2/models/mock_llm/generate_stream", body)
        response = connection.getresponse()
        first = response.readline()
        began = time.monotonic()
        assert json.loads(first[6:])["TEXT"] == "hello world"
        assert response.read().count(b"data: ") == 3
        assert time.monotonic() - began > 0.3, "the others left 600 ms later"


def test_parameters_of_request_and_response(wire: Wire) -> None:
    for extra in ({"REPETITION": 2, "SIZE": 2}, {"parameters": {"REPETITION": 2, "SIZE": 2}}):
        found = documents(stream(wire, "mock_llm", {**HELLO, **extra}))
        assert [document["TEXT"] for document in found] == ["hello worldhello world"] * 2
        assert all(isinstance(document["cancelled"], int) for document in found)
    nested = {"PROMPT": "in", "parameters": {"STREAM": False}}
    assert generate(wire, "mock_llm", nested).json["TEXT"] == "in"


def test_error_as_first_or_later_response(wire: Wire) -> None:
    body = {**HELLO, "FAIL_LAST": True}
    first = stream(wire, "mock_llm", {**body, "REPETITION": 0})
    assert (first.status, documents(first)) == (503, [{"error": "An Error Occurred"}])
    later = stream(wire, "mock_llm", {**body, "REPETITION": 1})
    one, error = documents(later)
    assert (later.status, one["TEXT"], error) == (200, "hello world", {"error": "An Error Occurred"})
    check_refusal(generate(wire, "mock_llm", {**body, "REPETITION": 0}), 503, "An Error Occurred")
    check_refusal(generate(wire, "mock_llm", {**body, "REPETITION": 1}), 200, EXACTLY_ONE)
    check_simple(wire)


NO_TYPE = "parameter '{}' has invalid type. It should be either 'int', 'bool', or 'string'."
NO_STRING = "Unable to parse JSON bytes array: attempt to access JSON non-string as string"
REFUSED = {
    "no inputs": ({"abc": 1}, 400, "[request id: <id_unknown>] expected 2 inputs but got 0 inputs for model"),
    "one input": ({"STREAM": True}, 400, "[request id: <id_unknown>] expected 2 inputs but got 1 inputs for"),
    "number for text": ({**HELLO, "PROMPT": 1}, 500, NO_STRING),
    "object for text": ({**HELLO, "PROMPT": {"USER": "x"}}, 500, NO_STRING),
    "text for truth": (
        {**HELLO, "STREAM": "false"},
        500,
        "Unable to parse 'data': attempt to access JSON non-boolean as boolean",
    ),
    "object for a parameter": ({**HELLO, "PARAMS": {"A": 0}}, 400, NO_TYPE.format("PARAMS")),
    "parameters that are no object": (
        {**HELLO, "parameters": 1},
        500,
        "Expected JSON object for keyword: 'parameters'",
    ),
    "nested parameter": (
        {**HELLO, "parameters": {"nested": {"twice": 1}}},
        400,
        "Converting keyword: 'parameters': " + NO_TYPE.format("nested"),
    ),
    "too many elements": (
        {**HELLO, "PROMPT": ["a", "b"]},
        400,
        "The schema can not convert input 'PROMPT' to tensor with proper shape",
    ),
    "an input twice": (
        b'{"PROMPT":"a","STREAM":false,"PROMPT":"b"}',
        400,
        "input 'PROMPT' already exists in request",
    ),
    "no JSON": (b"{", 500, "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
    "deep JSON": (
        b'{"x":' + b"[" * 100_000,
        400,
        "JSON nesting depth exceeds maximum allowed limit (100)",
    ),
}


@pytest.mark.parametrize("verb", ["generate", "generate_stream"])
@pytest.mark.parametrize(("body", "status", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_requests(wire: Wire, verb: str, body: object, status: int, text: str) -> None:
    answer = generate(wire, "mock_llm", body, verb)
    assert (answer.status, answer.headers["Content-Type"]) == (status, "application/json")
    assert answer.json["error"].startswith(text)
    check_simple(wire)


def test_compressed_and_oversized_requests(wire: Wire) -> None:
    for coding in ("gzip", "br"):
        coded = generate(wire, "simple", b"x", **{"Content-Encoding": coding})
        check_refusal(coded, 400, "Unsupported content-encoding, only 'identity' is supported.")
    plain = generate(wire, "simple", SIMPLE, **{"Content-Encoding": "identity", "Accept-Encoding": "gzip"})
    assert plain.status == 200 and "content-encoding" not in {name.lower() for name in plain.headers}
    body = b'{"x":"' + b"y" * (64 << 20) + b'"}'
    check_refusal(
        generate(wire, "simple", body),
        400,
        f"request JSON size of {len(body)} bytes exceeds the maximum allowed input size of 67108864 bytes. "
        "Use --http-max-input-size to increase the limit.",
    )
    check_simple(wire)


@pytest.mark.parametrize("verb", ["generate", "generate_stream"])
def test_paths_and_methods(wire: Wire, verb: str) -> None:
    check_refusal(wire.send("GET", f"/v2/models/simple/{verb}"), 405, "Method Not Allowed")
    check_refusal(wire.send("POST", f"/v2/models/simple/{verb}/", b"{}"), 404, "Not Found")
    check_refusal(generate(wire, "nobody", {}, verb), 404, "Request for unknown model: 'nobody' is not found")
    assert wire.send("HEAD", f"/v2/models/simple/{verb}").status == 405


def cancelled(wire: Wire) -> int:
    return int(generate(wire, "mock_llm", {**HELLO, "STREAM": False}).json["cancelled"])


@pytest.mark.parametrize("verb", ["generate", "generate_stream"])
def test_a_client_that_leaves_frees_the_model(server: Addresses, wire: Wire, verb: str) -> None:
    """The model works on one request at a time: until it hears of the cancellation nobody else is served."""
    before = cancelled(wire)
    host, port = server.http.split(":")
    body = json.dumps({**HELLO, "REPETITION": 1 if verb == "generate" else 1000, "DELAY": 10}).encode()
    if verb == "generate":
        body = body.replace(b'"DELAY": 10', b'"DELAY": 300')
    head = f"POST /v2/models/mock_llm/{verb} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
        connection.sendall(head.encode() + body)
        if verb == "generate_stream":
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")
        else:
            time.sleep(0.1)
    left = time.monotonic()
    assert cancelled(wire) == before + 1
    assert time.monotonic() - left < 5, "the model was not left at once"


def test_a_slow_reader_gets_everything_and_holds_up_nobody(server: Addresses, wire: Wire) -> None:
    with closing(http.client.HTTPConnection(server.http, timeout=TIMEOUT_S)) as connection:
        body = {"PROMPT": "x", "STREAM": True, "REPETITION": 300, "SIZE": 100_000}
        connection.request("POST", "/v2/models/mock_llm/generate_stream", json.dumps(body))
        response = connection.getresponse()
        response.readline()
        for _ in range(20):
            check_simple(wire)
            time.sleep(0.02)
        assert response.read().count(b"data: ") == 299
