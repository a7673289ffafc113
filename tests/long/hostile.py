"""Clients that lie, leave in the middle or lose patience. What they do must harm nobody but themselves."""

import gzip
import http.client
import json
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from queue import SimpleQueue
from typing import Any

import numpy as np
import tritonclient.grpc

from tests.long.client import TIMEOUT_S, Client, Cut, check, tensors
from tests.long.inference import TOO_LATE
from tests.long.outcomes import NO_ANSWER, Refusal, Refused, Wrong, refusals

_JSON_LENGTH = "Inference-Header-Content-Length"
_GIVEN_UP = ("CANCELLED", "DEADLINE_EXCEEDED", "499", "")
_BROKEN = (NO_ANSWER, "UNAVAILABLE", "UNKNOWN", "INTERNAL", "CANCELLED", "")


def _head(values: np.ndarray, name: str = "INPUT0", **changed: Any) -> bytes:
    parameters = {"binary_data_size": values.nbytes}
    tensor = {"name": name, "shape": values.shape, "datatype": "FP32", "parameters": parameters, **changed}
    return json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()


def _post(model: str, length: int, head: bytes) -> bytes:
    """Request line and headers of an inference with a body of so many bytes."""
    lines = (
        f"POST /v2/models/{model}/infer HTTP/1.1",
        "Host: nereid",
        f"{_JSON_LENGTH}: {len(head)}",
        f"Content-Length: {length}",
    )
    return "\r\n".join((*lines, "", "")).encode()


def _connect(client: Client) -> socket.socket:
    host, _, port = client.address.partition(":")
    with refusals():
        return socket.create_connection((host, int(port)), TIMEOUT_S)


def _hang_up(client: Client, connection: socket.socket) -> None:
    """Close, half of the times with a reset."""
    if client.random.random() < 0.5:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def left_while_asking(client: Client) -> None:
    """A connection that ends in the midst of a request."""
    values = client.values()
    head = _head(values)
    body = head + values.tobytes()
    model = client.random.choice(("identity", "add_one", "chain", "calls"))
    request = _post(model, len(body), head) + body
    connection = _connect(client)
    with refusals():
        connection.sendall(request[: client.random.randrange(len(request))])
    _hang_up(client, connection)


def left_while_answered(client: Client) -> None:
    """A connection that ends while its request is under way, or in the midst of the answer."""
    values = client.values((20_000, 400_000))
    head = _head(values)
    model = client.random.choice(("identity", "add_one", "chain", "calls", "slow", "cached"))
    connection = _connect(client)
    with refusals():
        connection.sendall(_post(model, len(head) + values.nbytes, head) + head + values.tobytes())
        if client.random.random() < 0.7:
            connection.recv(client.random.choice((1, 1000, 60_000)))
    _hang_up(client, connection)


def left_events(client: Client) -> None:
    """A connection that ends while events come."""
    body = json.dumps(
        {"PROMPT": "x" * 100, "STREAM": True, "REPETITION": 20, "SIZE": 500, "DELAY": 2}
    ).encode()
    connection = _connect(client)
    head = (
        f"POST /v2/models/mock_llm/generate_stream HTTP/1.1\r\nHost: n\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with refusals():
        connection.sendall(head.encode() + body)
        connection.recv(client.random.choice((1, 1000, 60_000)))
    _hang_up(client, connection)


def cut(client: Client) -> None:
    """A connection that breaks anywhere; if it does not, the answer is right."""
    values = client.values((16, 20_000, 150_000))
    after = client.random.randrange(100, 3 * values.nbytes + 2000)
    model, more = client.random.choice((("identity", 0), ("add_one", 1), ("chain", 2)))
    with Cut(client.grpc_address, after) as relay:
        connection = tritonclient.grpc.InferenceServerClient(relay.address)
        try:
            with refusals():
                built = tensors(tritonclient.grpc, {"INPUT0": values})
                found = connection.infer(model, built, client_timeout=TIMEOUT_S).as_numpy("OUTPUT0")
            check(found, values + more, f"{model} through a connection cut after {after} bytes")
        except Refused as error:
            if error.refusal.status not in _BROKEN:
                raise
        finally:
            connection.close()


def cancelled(client: Client) -> None:
    """A gRPC call that is cancelled: no answer, or still the right one."""
    values = client.values()
    model, more = client.random.choice((("slow", 0), ("add_one", 1), ("chain", 2), ("calls", 2)))
    arrived: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
    with refusals():
        call = client.grpc.async_infer(
            model,
            tensors(tritonclient.grpc, {"INPUT0": values}),
            lambda result, error: arrived.put((result, error)),
            client_timeout=TIMEOUT_S,
        )
        with suppress(Exception):
            arrived.put(arrived.get(timeout=client.random.choice((0.0, 0.002, 0.01, 0.03))))
        call.cancel()
    _check_given_up(arrived.get(timeout=TIMEOUT_S), values + more, f"{model}, cancelled")


def impatient(client: Client) -> None:
    """A gRPC call with a deadline, which calls that it leads to have too: one may find it over first."""
    values = client.values()
    model, more = client.random.choice((("slow", 0), ("add_one", 1), ("chain", 2), ("calls", 2)))
    try:
        output = client.infer(
            model, {"INPUT0": values}, "grpc", client_timeout=client.random.choice((0.001, 0.005, 0.02, 0.1))
        )
    except Refused as error:
        late = any(text in error.refusal.text for text in TOO_LATE)
        if error.refusal.status not in _GIVEN_UP and not late:
            raise
        return
    check(output("OUTPUT0"), values + more, f"{model} within its deadline")


def _check_given_up(outcome: tuple[Any, Any], wanted: np.ndarray, what: str) -> None:
    result, error = outcome
    try:
        with refusals():
            if error is not None:
                raise error
    except Refused as refused:
        if refused.refusal.status not in _GIVEN_UP:
            raise
        return
    check(result.as_numpy("OUTPUT0"), wanted, what)


def _lies() -> dict[str, Callable[[Client], tuple[bytes, bytes, Mapping[str, str]]]]:
    """Bodies that cannot be right: the JSON, what follows it, and further headers."""

    def honest(client: Client) -> np.ndarray:
        return client.values((16, 20_000))

    def longer(client: Client) -> tuple[bytes, bytes, Mapping[str, str]]:
        values = honest(client)
        return _head(values, parameters={"binary_data_size": values.nbytes + 4}), values.tobytes(), {}

    def shorter(client: Client) -> tuple[bytes, bytes, Mapping[str, str]]:
        values = honest(client)
        return _head(values, parameters={"binary_data_size": values.nbytes - 4}), values.tobytes(), {}

    def misshapen(client: Client) -> tuple[bytes, bytes, Mapping[str, str]]:
        values = honest(client)
        return _head(values, shape=[1, values.size * 2]), values.tobytes(), {}

    def endless(client: Client) -> tuple[bytes, bytes, Mapping[str, str]]:
        values = honest(client)
        return _head(values), values.tobytes(), {_JSON_LENGTH: "99999999999"}

    def unknown(client: Client) -> tuple[bytes, bytes, Mapping[str, str]]:
        values = honest(client)
        return _head(values, "NOBODY"), values.tobytes(), {}

    def truncated(client: Client) -> tuple[bytes, bytes, Mapping[str, str]]:
        return _head(honest(client))[:-20], b"", {}

    def no_gzip(client: Client) -> tuple[bytes, bytes, Mapping[str, str]]:
        values = honest(client)
        squeezed = gzip.compress(_head(values) + values.tobytes(), 1)
        return squeezed[: len(squeezed) // 2], b"", {"Content-Encoding": "gzip"}

    found = (longer, shorter, misshapen, endless, unknown, truncated, no_gzip)
    return {lie.__name__: lie for lie in found}


LIES = _lies()


def lied(client: Client) -> None:
    """A body that cannot be right is refused, and its connection serves on."""
    name = client.random.choice(list(LIES))
    head, rest, more = LIES[name](client)
    headers = {_JSON_LENGTH: str(len(head)), **more}
    with closing(http.client.HTTPConnection(client.address, timeout=TIMEOUT_S)) as connection:
        with refusals():
            connection.request("POST", "/v2/models/identity/infer", head + rest, headers)
            response = connection.getresponse()
            answer = response.read()
        if response.status not in (400, 500) or "error" not in json.loads(answer):
            refusal = Refusal(str(response.status), answer[:300].decode(errors="replace"))
            if refusal.transient:
                raise Refused(refusal)
            raise Wrong(f"a lie ({name}) was answered with {refusal}")
        _ask_honestly(client, connection)


def _ask_honestly(client: Client, connection: http.client.HTTPConnection) -> None:
    values = client.values((16,))
    head = _head(values)
    with refusals():
        headers = {_JSON_LENGTH: str(len(head))}
        connection.request("POST", "/v2/models/identity/infer", head + values.tobytes(), headers)
        response = connection.getresponse()
        answer = response.read()
    if response.status != 200:
        raise Refused(Refusal(str(response.status), answer.decode(errors="replace")))
    check(np.frombuffer(answer[-values.nbytes :], np.float32), values[0], "identity after a lie")
