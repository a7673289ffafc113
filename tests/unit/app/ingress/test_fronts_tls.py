"""Fronts with TLS, asked by tritonclient."""

import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client

from tests.certificates import Authority, Pair
from tests.unit.app.ingress.running_fronts import WAIT_S, ZEROS, Fronts, infer, refusal, tensor


def http_over_tls(url: str, root: Any, pair: Pair | None = None) -> Any:
    def context() -> Any:
        made = ssl.create_default_context(cafile=str(root))
        if pair:
            made.load_cert_chain(pair.cert, pair.key)
        return made

    return http_client.InferenceServerClient(
        url, ssl=True, ssl_context_factory=context, connection_timeout=WAIT_S, network_timeout=WAIT_S
    )


def grpc_over_tls(url: str, root: Any, pair: Pair | None = None) -> Any:
    files = {"private_key": str(pair.key), "certificate_chain": str(pair.cert)} if pair else {}
    return grpc_client.InferenceServerClient(url, ssl=True, root_certificates=str(root), **files)


def tls(front: Any, pair: Pair, root: Any = None) -> Any:
    mutual = {f"{front}_use_ssl_mutual": True, f"{front}_root_cert": str(root)} if root else {}
    return {
        f"{front}_use_ssl": True,
        f"{front}_server_cert": str(pair.cert),
        f"{front}_server_key": str(pair.key),
    } | mutual


def test_https(fronts: Fronts, authority: Authority, pair: Pair) -> None:
    with fronts(**tls("http", pair)) as running, http_over_tls(running.http, authority.root) as client:
        assert client.is_server_ready()
        for size in (4, 1_000_000):
            output = client.infer("identity", [tensor(http_client, size)]).as_numpy("OUTPUT0")
            assert output.shape == (1, size)


def test_https_answers_rejected_requests(fronts: Fronts, authority: Authority, pair: Pair) -> None:
    with fronts(http_max_header_size=2048, **tls("http", pair)) as running:
        context = ssl.create_default_context(cafile=str(authority.root))
        plain = socket.create_connection(("127.0.0.1", running.http_port), WAIT_S)
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
            connection.sendall(b"GET /" + b"x" * 4096 + b" HTTP/1.1\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 431 ")


def test_plain_http_on_a_tls_port_reaches_no_route(fronts: Fronts, pair: Pair) -> None:
    with (
        fronts(**tls("http", pair)) as running,
        socket.create_connection(("127.0.0.1", running.http_port), WAIT_S) as connection,
    ):
        connection.sendall(b"GET /v2/health/live HTTP/1.1\r\n\r\n" * 2)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1


def test_mutual_https(fronts: Fronts, authority: Authority, pair: Pair, tmp_path: Path) -> None:
    with fronts(**tls("http", pair, authority.root)) as running:
        with http_over_tls(running.http, authority.root, authority.issue("client")) as client:
            assert infer(client, http_client) == ZEROS
        (tmp_path / "other").mkdir()
        stranger = Authority(tmp_path / "other", "stranger").issue("client")
        for refused in (None, stranger):
            with http_over_tls(running.http, authority.root, refused) as client, pytest.raises(Exception):  # noqa: B017
                infer(client, http_client)
    assert running.service.requests == 1


def test_grpc_over_tls(fronts: Fronts, authority: Authority, pair: Pair) -> None:
    with fronts(**tls("grpc", pair)) as running:
        with grpc_over_tls(running.grpc, authority.root) as client:
            assert infer(client, grpc_client) == ZEROS
        with grpc_client.InferenceServerClient(running.grpc) as client:
            assert refusal(client.is_server_live)[0] == "StatusCode.UNIMPLEMENTED"


def test_mutual_grpc(fronts: Fronts, authority: Authority, pair: Pair, tmp_path: Path) -> None:
    with fronts(**tls("grpc", pair, authority.root)) as running:
        with grpc_over_tls(running.grpc, authority.root, authority.issue("client")) as client:
            assert infer(client, grpc_client) == ZEROS
        (tmp_path / "other").mkdir()
        stranger = Authority(tmp_path / "other", "stranger").issue("client")
        for refused in (None, stranger):
            with grpc_over_tls(running.grpc, authority.root, refused) as client:
                assert refusal(client.is_server_live)[0] == "StatusCode.UNAVAILABLE"
