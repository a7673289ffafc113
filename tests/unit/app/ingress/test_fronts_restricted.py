"""Fronts that answer some protocols only with a header, asked by tritonclient."""

import asyncio
import queue
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import grpc
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
import tritonclient.http.aio as http_aio_client
from tritonclient.utils import InferenceServerException

from tests.unit.app.ingress.running_fronts import WAIT_S, ZEROS, Fronts, infer, refusal, tensor
from tests.unit.app.ingress.running_fronts import Running as RunningFronts

# The HTTP client writes into the headers it is given: each call gets a copy.
SECRET = {"infer-key": "infer-value"}
GRPC_SECRET = {"triton-grpc-protocol-infer-key": "infer-value"}
HTTP_TEXT = "This API is restricted, expecting header 'infer-key'"
GRPC_TEXT = "This protocol is restricted, expecting header 'triton-grpc-protocol-infer-key'"


@pytest.fixture
def restricted(fronts: Fronts) -> Iterator[Any]:
    with fronts(
        http_restricted_api="inference,model-repository:Infer-Key=infer-value".replace(
            "Infer-Key", "infer-key"
        ),
        grpc_restricted_protocol="inference,model-repository:infer-key=infer-value",
    ) as running:
        yield running


@pytest.mark.parametrize("headers", [None, {"infer-key": "infer-valu"}, {"other": "infer-value"}])
def test_http_refuses_without_the_header(restricted: RunningFronts, headers: Any) -> None:
    with http_client.InferenceServerClient(restricted.http) as client:
        for call in (
            partial(infer, client, http_client),
            partial(client.load_model, "m"),
            client.get_model_repository_index,
        ):
            assert refusal(partial(call, headers=dict(headers or {}))) == ("403", HTTP_TEXT)
        assert client.is_server_ready() and client.get_server_metadata()["name"] == "triton"
    assert restricted.service.requests == 0 and restricted.service.loaded == []


def test_http_answers_with_the_header(restricted: RunningFronts) -> None:
    with http_client.InferenceServerClient(restricted.http) as client:
        for _ in range(2):
            assert infer(client, http_client, headers={"INFER-Key": "infer-value"}) == ZEROS
            assert refusal(partial(infer, client, http_client))[0] == "403"
        client.load_model("m", headers=dict(SECRET))
    assert len(restricted.service.loaded) == 1


@pytest.mark.parametrize(
    "path", ["/v2/models/identity/infer", "/v2/models/identity/generate", "/v2/repository/index"]
)
def test_http_refuses_a_restricted_path_by_any_method(restricted: RunningFronts, path: str) -> None:
    for method in ("GET", "POST", "PUT"):
        with socket.create_connection(("127.0.0.1", restricted.http_port), WAIT_S) as connection:
            head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            connection.sendall(head.encode())
            answer = b"".join(iter(partial(connection.recv, 65536), b""))
        assert answer.startswith(b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\n")
        assert answer.endswith(f'{{"error":"{HTTP_TEXT}"}}'.encode())


def test_aio_client_is_restricted_too(restricted: RunningFronts) -> None:
    async def ask() -> Any:
        async with http_aio_client.InferenceServerClient(restricted.http) as client:
            with pytest.raises(InferenceServerException, match="This API is restricted"):
                await client.infer("identity", [tensor(http_client)])
            return await client.infer("identity", [tensor(http_client)], headers=dict(SECRET))

    assert asyncio.run(ask()).as_numpy("OUTPUT0").tolist() == ZEROS


@pytest.mark.parametrize("headers", [None, SECRET, {"triton-grpc-protocol-infer-key": "x"}])
def test_grpc_refuses_without_the_metadata(restricted: RunningFronts, headers: Any) -> None:
    with grpc_client.InferenceServerClient(restricted.grpc) as client:
        for call in (
            partial(infer, client, grpc_client),
            partial(client.load_model, "m"),
            client.get_model_repository_index,
        ):
            assert refusal(partial(call, headers=headers)) == ("StatusCode.UNAVAILABLE", GRPC_TEXT)
        assert client.is_server_ready() and client.get_server_metadata().name == "triton"
    assert restricted.service.loaded == []


def test_grpc_answers_with_the_metadata(restricted: RunningFronts) -> None:
    with grpc_client.InferenceServerClient(restricted.grpc) as client:
        assert infer(client, grpc_client, headers=GRPC_SECRET) == ZEROS
        client.load_model("m", headers=GRPC_SECRET)


@pytest.mark.parametrize(("headers", "admitted"), [(None, False), (GRPC_SECRET, True)])
def test_grpc_streams_are_restricted(restricted: RunningFronts, headers: Any, admitted: Any) -> None:
    results: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with grpc_client.InferenceServerClient(restricted.grpc) as client:
        client.start_stream(lambda result, error: results.put(error or result), headers=headers)
        if admitted:
            client.async_stream_infer("identity", [tensor(grpc_client)])
        result = results.get(timeout=WAIT_S)
        if admitted:
            assert result.as_numpy("OUTPUT0").tolist() == ZEROS
        else:
            assert (result.status(), result.message()) == ("StatusCode.UNAVAILABLE", GRPC_TEXT)


def test_grpc_health_service_is_in_the_health_category(fronts: Fronts) -> None:
    with (
        fronts(grpc_restricted_protocol="health:k=v") as running,
        grpc.insecure_channel(running.grpc) as channel,
    ):
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        with pytest.raises(grpc.RpcError) as refused:
            check(b"", timeout=WAIT_S)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert check(b"", timeout=WAIT_S, metadata=[("triton-grpc-protocol-k", "v")]) == b"\x08\x01"
        unknown = channel.unary_unary("/inference.GRPCInferenceService/Nothing")
        with pytest.raises(grpc.RpcError) as missing:
            unknown(b"", timeout=WAIT_S)
        assert missing.value.code() is grpc.StatusCode.UNIMPLEMENTED
