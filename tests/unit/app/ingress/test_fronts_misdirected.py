"""Clients that speak another protocol than the port that they have: each is told so in its own."""

import http.client
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import grpc
import hpack
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from app.ingress.net import tls_accepting
from app.protocol.grpc import http2 as h2
from tests.certificates import Authority, Pair
from tests.unit.app.ingress.http2.raw_client import decoded
from tests.unit.app.ingress.running_fronts import WAIT_S, ZEROS, Fronts, Running, infer, refusal, tensor
from tests.unit.app.ingress.test_fronts_tls import grpc_over_tls, http_over_tls, tls


@pytest.fixture
def running(fronts: Fronts) -> Iterator[Running]:
    with fronts() as opened:
        yield opened


def asked(address: str, method: str = "GET", body: bytes | None = None) -> tuple[int, str]:
    """Status and body of a plain request."""
    connection = http.client.HTTPConnection(address, timeout=WAIT_S)
    connection.request(method, "/v2/health/ready", body)
    response = connection.getresponse()
    answer = response.status, response.read().decode()
    connection.close()
    return answer


def exchanged(port: int, data: bytes) -> bytes:
    """What a port answers to bytes before it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as connection:
        connection.sendall(data)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_grpc_client_at_the_http_port_is_told_the_grpc_port(running: Running) -> None:
    with grpc_client.InferenceServerClient(running.http) as client:
        for call in (client.is_server_live, lambda: client.infer("identity", [tensor(grpc_client)])):
            status, text = refusal(call)
            assert status == "StatusCode.UNIMPLEMENTED"
            assert f"HTTP port: gRPC is at port {running.grpc_port}" in text
    assert infer(http_client.InferenceServerClient(running.http), http_client) == ZEROS


def test_grpc_stream_at_the_http_port_ends_with_the_reason(running: Running) -> None:
    with grpc.insecure_channel(running.http) as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")(
            iter([b""]), timeout=WAIT_S
        )
        with pytest.raises(grpc.RpcError, match="HTTP port"):
            next(call)


def test_long_request_of_grpc_at_the_http_port_ends_with_the_reason(running: Running) -> None:
    with grpc_client.InferenceServerClient(running.http) as client:
        for _ in range(3):
            _, text = refusal(lambda: client.infer("identity", [tensor(grpc_client, 1_000_000)]))
            assert "HTTP port" in text


def test_http_client_at_the_grpc_port_is_told_the_http_port(running: Running) -> None:
    for method, body in (("GET", None), ("POST", b"{}"), ("PUT", b"x" * 100_000)):
        status, text = asked(running.grpc, method, body)
        assert status == 400
        assert f"gRPC port: HTTP is at port {running.http_port}" in text
    with (
        http_client.InferenceServerClient(running.grpc) as client,
        pytest.raises(InferenceServerException, match=f"HTTP is at port {running.http_port}"),
    ):
        client.get_server_metadata()
    assert infer(grpc_client.InferenceServerClient(running.grpc), grpc_client) == ZEROS


def test_port_that_is_off_is_not_named(fronts: Fronts) -> None:
    with fronts(allow_grpc=False) as running, grpc_client.InferenceServerClient(running.http) as client:
        assert "--allow-grpc" in refusal(client.is_server_live)[1]


def test_http2_request_that_is_no_call_has_a_sentence(running: Running) -> None:
    block = hpack.Encoder().encode([(":method", "GET"), (":path", "/v2"), (":scheme", "http")])
    head = h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 1, block)
    request = h2.PREFACE + h2.settings_frame({}) + head
    for port, text in ((running.http_port, b"server's HTTP port"), (running.grpc_port, b"gRPC port")):
        with socket.create_connection(("127.0.0.1", port), WAIT_S) as connection:
            connection.sendall(request)
            reader = h2.FrameReader(1 << 20)
            frames: list[Any] = []
            while not any(frame.kind == h2.HEADERS and frame.flags & h2.END_STREAM for frame in frames):
                frames += reader.feed(connection.recv(65536))
        assert frames[0].kind == h2.SETTINGS
        headers, body = (next(f.payload for f in frames if f.kind == kind) for kind in (h2.HEADERS, h2.DATA))
        assert decoded(headers)[0] in ((":status", "400"), (":status", "405"))
        assert text in body


def test_silent_connection_is_no_harm(running: Running) -> None:
    for port in (running.http_port, running.grpc_port):
        with socket.create_connection(("127.0.0.1", port), WAIT_S) as connection:
            connection.sendall(b"P")
    assert infer(grpc_client.InferenceServerClient(running.grpc), grpc_client) == ZEROS


def test_client_of_tls_at_a_plain_port_is_logged(
    running: Running, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    context = ssl.create_default_context(cafile=str(authority.root))
    for port, name in ((running.http_port, "HTTP"), (running.grpc_port, "gRPC")):
        for _ in range(2):
            with pytest.raises(ssl.SSLError):
                context.wrap_socket(
                    socket.create_connection(("127.0.0.1", port), WAIT_S), server_hostname="127.0.0.1"
                )
        texts = [text for text in caplog.messages if f"speaks TLS to the {name} port" in text]
        assert len(texts) == 1
        assert f"--{name.lower()}-use-ssl" in texts[0]


def test_plain_client_at_a_tls_port_is_told_so(fronts: Fronts, authority: Authority, pair: Pair) -> None:
    with fronts(**tls("http", pair), **tls("grpc", pair)) as running:
        for address in (running.http, running.grpc):
            status, text = asked(address)
            assert (status, "speaks TLS" in text) == (400, True)
            with grpc_client.InferenceServerClient(address) as client:
                status, text = refusal(client.is_server_live)
                assert (status, "speaks TLS" in text) == ("StatusCode.UNIMPLEMENTED", True)
        with http_over_tls(running.http, authority.root) as client:
            assert infer(client, http_client) == ZEROS
        with grpc_over_tls(running.grpc, authority.root) as client:
            assert infer(client, grpc_client) == ZEROS


def test_clients_of_tls_that_confuse_the_ports_are_told_so(
    fronts: Fronts, authority: Authority, pair: Pair
) -> None:
    with fronts(**tls("http", pair), **tls("grpc", pair)) as running:
        with grpc_over_tls(running.http, authority.root) as client:
            assert f"gRPC is at port {running.grpc_port}" in refusal(client.is_server_live)[1]
        with (
            http_over_tls(running.grpc, authority.root) as client,
            pytest.raises(InferenceServerException, match=f"HTTP is at port {running.http_port}"),
        ):
            client.get_server_metadata()


def test_connections_that_never_begin_are_closed_with_the_server(fronts: Fronts, pair: Pair) -> None:
    with fronts(**tls("http", pair)) as running:
        silent = socket.create_connection(("127.0.0.1", running.http_port), WAIT_S)
    with silent:
        assert silent.recv(1) == b""


def test_connection_without_a_descriptor_is_closed(
    fronts: Fronts, authority: Authority, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(_: int) -> int:
        raise OSError(24, "Too many open files")

    with fronts(**tls("http", pair)) as running:
        with monkeypatch.context() as patched:
            patched.setattr("os.dup", none_left)
            assert exchanged(running.http_port, b"") == b""
        with http_over_tls(running.http, authority.root) as client:
            assert infer(client, http_client) == ZEROS


def test_connections_that_do_not_begin_are_limited(
    fronts: Fronts, authority: Authority, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_accepting, "_MAX_WAITING", 1)
    with fronts(**tls("http", pair)) as running:
        with socket.create_connection(("127.0.0.1", running.http_port), WAIT_S):
            assert exchanged(running.http_port, b"") == b""
        with http_over_tls(running.http, authority.root) as client:
            assert infer(client, http_client) == ZEROS
