"""Clients that leave anywhere, read nothing, or send what is large: bounded, and nobody else is harmed."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest

from app.core.tensors import InferRequest, InferResponse
from tests.unit.app.ingress.openai.text_models import TextService, of, post
from tests.unit.app.ingress.running_fronts import Fronts, Running
from tests.waiting import block_until

CHAT = {"model": "identity", "messages": [{"role": "user", "content": "say"}], "stream": True}
BODY = json.dumps(CHAT).encode()
REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


class Endless(TextService):
    """A model whose texts begin, and do not end."""

    def responses(self, request: InferRequest) -> list[InferResponse]:
        return [self.response("a", False)]


@pytest.fixture
def opened(fronts: Fronts) -> Iterator[Callable[..., Running]]:
    with ExitStack() as stack:
        yield lambda service, **settings: stack.enter_context(
            fronts(service=service, allow_openai=True, **settings)
        )


def test_a_client_may_leave_at_each_byte_of_its_request(opened: Callable[..., Running]) -> None:
    running = opened(TextService(of("a", "b")))
    for size in range(1, len(REQUEST)):
        with socket.create_connection(("127.0.0.1", running.http_port)) as left:
            left.sendall(REQUEST[:size])
    assert post(running.http_port, "/v1/chat/completions", CHAT).texts == {0: "ab"}


def test_a_client_may_leave_at_each_byte_of_its_answer(opened: Callable[..., Running]) -> None:
    running = opened(TextService(of("a", "b")))
    size = ended = 0
    while not ended:
        size += 1
        with socket.create_connection(("127.0.0.1", running.http_port)) as left:
            left.sendall(REQUEST)
            received = b""
            while len(received) < size and not received.endswith(b"\r\n0\r\n\r\n"):
                received += left.recv(size - len(received))
        ended = received.endswith(b"\r\n0\r\n\r\n")
    assert size > 500 and b"data: [DONE]" in received
    assert post(running.http_port, "/v1/chat/completions", CHAT).texts == {0: "ab"}


def test_a_client_that_leaves_a_stream_cancels_all_its_requests(opened: Callable[..., Running]) -> None:
    service = Endless(of("a"))
    running = opened(service)
    body = json.dumps(CHAT | {"n": 3}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", running.http_port)) as left:
        left.sendall(head + body)
        assert left.recv(1000).startswith(b"HTTP/1.1 200")
        assert not any(call.cancelled for call in service.calls)
    begun = time.monotonic()
    block_until(lambda: len(service.calls) == 3 and all(call.cancelled for call in service.calls))
    assert time.monotonic() - begun < 5


def test_a_client_that_reads_nothing_is_cut_off(opened: Callable[..., Running]) -> None:
    pieces = ["x" * 60_000] * 200
    service = TextService(of(*pieces))
    running = opened(service)
    context = running._fronts[-1]._context  # type: ignore[attr-defined]
    object.__setattr__(context, "limits", msgspec.structs.replace(context.limits, stream_bytes=1 << 20))
    with socket.create_connection(("127.0.0.1", running.http_port)) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)  # less than a segment waits for timers
        slow.sendall(REQUEST)
        block_until(lambda: any(call.cancelled for call in service.calls))
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            data = slow.recv(1 << 20)
            assert data
            received = received[-4096:] + data
    assert b"client reads responses too slowly" in received and b"data: [DONE]" in received


def _called(arguments: str) -> list[Any]:
    """Return a chat in which the model has called a function."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": ""},
    ]


def _nested(depth: int) -> dict[str, Any]:
    """Return a response format whose schema has schemas in it."""
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}


LARGE: list[Any] = [
    {"messages": _called(json.dumps("x" * (10 << 20)))},
    {"response_format": _nested(40)},
    {"response_format": _nested(400)},
    {"messages": [{"role": "user", "content": "x" * (10 << 20)}]},
    {"messages": [{"role": "user", "content": "x"}] * 100_000},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 10_000}]},
    {"stop": ["x" * 65536] * 16},
    {"stop": ["x"] * 100_000},
    {"n": 10**9},
    {"n": 1e308},
    {"logit_bias": {str(at): 1 for at in range(100_000)}},
    {"tools": [{"type": "function", "function": {"name": "f"}}] * 1000},
    {"metadata": [[[[[[]]]]]] * 100_000},
    {"user": "x" * (1 << 20)},
    {"x" * (1 << 20): 1},
    {"model": "x" * (1 << 20)},
]


@pytest.mark.parametrize("change", LARGE, ids=lambda change: next(iter(change))[:10])
def test_large_requests_are_answered_shortly(opened: Callable[..., Running], change: Any) -> None:
    running = opened(TextService(of("a")))
    body = CHAT | {"stream": False} | change
    begun = time.process_time()
    found = post(running.http_port, "/v1/chat/completions", json.dumps(body).encode())
    assert found.status in (200, 400, 404) and len(found.body) < 2000
    assert time.process_time() - begun < 5


def test_copies_of_a_long_prompt_are_bounded(opened: Callable[..., Running]) -> None:
    service = TextService(of("a"))
    running = opened(service, http_max_input_size=1 << 20)
    body = {"model": "identity", "prompt": "x" * 500_000}
    assert post(running.http_port, "/v1/completions", body | {"n": 2}).status == 200
    found = post(running.http_port, "/v1/completions", body | {"n": 100})
    assert (found.status, found.document["error"]["param"]) == (400, "n")
    assert len(service.seen) == 2


def test_deep_json_is_refused(opened: Callable[..., Running]) -> None:
    running = opened(TextService(of("a")))
    for deep in (b"[" * 200 + b"]" * 200, b"[" * 30_000):
        found = post(running.http_port, "/v1/chat/completions", b'{"model": "identity", "x": %b}' % deep)
        assert found.status == 400 and "nesting depth" in found.document["detail"]


@pytest.mark.parametrize("values", [b"[1]," * (1 << 15), b'"a":{},' * (1 << 15), b"1," * (1 << 18)])
def test_bodies_and_arguments_of_too_many_values_are_refused(
    opened: Callable[..., Running], values: bytes
) -> None:
    running = opened(TextService(of("a")))
    document = b"{%b1:1}" % values if values.startswith(b'"') else b"[%b1]" % values
    found = post(running.http_port, "/v1/chat/completions", b'{"model": "identity", "x": %b}' % document)
    assert found.status == 400 and "values" in found.document["error"]["message"]
    body = CHAT | {"messages": _called(document.decode())}
    found = post(running.http_port, "/v1/chat/completions", body)
    param = "messages[1].tool_calls[0].function.arguments"
    assert (found.status, found.document["error"]["param"]) == (400, param)


def test_texts_may_have_what_looks_like_values(opened: Callable[..., Running]) -> None:
    running = opened(TextService(of("a")))
    content = '[{"a\\": [1,2]},' * (1 << 17)
    body = CHAT | {"stream": False, "messages": [{"role": "user", "content": content}]}
    assert post(running.http_port, "/v1/chat/completions", body).status == 200
