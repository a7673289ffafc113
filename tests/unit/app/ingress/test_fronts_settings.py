"""The fronts as the settings compose them, asked by tritonclient: forwarding, limits, compression, health."""

import contextlib
import queue
import socket
import threading
from functools import partial
from typing import Any

import grpc
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from tests.unit.app.ingress.running_fronts import WAIT_S, ZEROS, Fronts, infer, refusal, tensor


@pytest.mark.parametrize("headers", [{"My_Header_1": "välue", "other": "no"}])
def test_http_forwards_headers(fronts: Fronts, headers: Any) -> None:
    with fronts(http_header_forward_pattern="my_header.*") as running:
        with socket.create_connection(("127.0.0.1", running.http_port), WAIT_S) as connection:
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            given = '{"name":"INPUT0","datatype":"FP32","shape":[1],"data":[1]}'
            body = f'{{"parameters":{{"own":1}},"inputs":[{given}]}}'
            head = f"POST /v2/models/identity/infer HTTP/1.1\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
            connection.sendall((head + body).encode())
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert running.service.parameters.get(timeout=WAIT_S) == {"own": 1, "My_Header_1": "välue"}


def test_http_refuses_to_forward_a_reserved_header(fronts: Fronts) -> None:
    text = "Header 'priority' is reserved for Triton usage and cannot be forwarded."
    with (
        fronts(http_header_forward_pattern="prio") as running,
        http_client.InferenceServerClient(running.http) as client,
    ):
        assert refusal(partial(infer, client, http_client, headers={"priority": "1"})) == ("400", text)
        assert infer(client, http_client) == ZEROS


def test_grpc_forwards_metadata_of_calls_and_streams(fronts: Fronts) -> None:
    with (
        fronts(grpc_header_forward_pattern="^my_header") as running,
        grpc_client.InferenceServerClient(running.grpc) as client,
    ):
        headers = {"my_header_1": "v", "other": "no", "my_header-bin": b"\xff"}
        infer(client, grpc_client, headers=headers, parameters={"own": 1})
        assert running.service.parameters.get(timeout=WAIT_S) == {"own": 1, "my_header_1": "v"}
        answered = threading.Event()
        client.start_stream(lambda result, error: answered.set(), headers=headers)
        client.async_stream_infer("identity", [tensor(grpc_client)])
        assert running.service.parameters.get(timeout=WAIT_S) == {"my_header_1": "v"}
        assert answered.wait(WAIT_S)


def test_grpc_refuses_to_forward_reserved_metadata(fronts: Fronts) -> None:
    text = "Header 'triton_x' is reserved for Triton usage and cannot be forwarded."
    results: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with (
        fronts(grpc_header_forward_pattern="triton_x") as running,
        grpc_client.InferenceServerClient(running.grpc) as client,
    ):
        headers = {"triton_x": "1"}
        call = partial(infer, client, grpc_client, headers=headers)
        assert refusal(call) == ("StatusCode.INVALID_ARGUMENT", text)
        client.start_stream(lambda result, error: results.put(error), headers=headers)
        client.async_stream_infer("identity", [tensor(grpc_client)])
        assert results.get(timeout=WAIT_S).message() == text


def test_messages_over_the_limit_are_refused(fronts: Fronts) -> None:
    with (
        fronts(grpc_max_message_size=4096) as running,
        grpc_client.InferenceServerClient(running.grpc) as client,
    ):
        running.service.large_output = bytes(5000)
        status, text = refusal(partial(infer, client, grpc_client))
        assert status == "StatusCode.INVALID_ARGUMENT"
        assert text.startswith("Response has byte size 50")
        assert text.endswith(" which exceeds gRPC's byte size limit 4096.")
        large = partial(client.infer, "identity", [tensor(grpc_client, 2000)])
        assert refusal(large)[0] == "StatusCode.RESOURCE_EXHAUSTED"


class Relay:
    """Relays TCP and counts the bytes that the server sends."""

    def __init__(self, port: int) -> None:
        self.received = 0
        self._upstream = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        client, _ = self._listener.accept()
        with client:
            requests = threading.Thread(target=self._pass, args=(client, self._upstream, False), daemon=True)
            requests.start()
            self._pass(self._upstream, client, True)
            requests.join(WAIT_S)

    def _pass(self, source: Any, target: Any, counted: Any) -> None:
        try:
            while data := source.recv(65536):
                self.received += len(data) if counted else 0
                target.sendall(data)
        except OSError:
            pass

    def close(self) -> None:
        self._upstream.shutdown(socket.SHUT_RDWR)
        self._thread.join(WAIT_S)
        self._upstream.close()
        self._listener.close()


@pytest.mark.parametrize(
    ("level", "understood", "compressed"),
    [("none", 7, False), ("low", 7, True), ("medium", 7, True), ("high", 7, True), ("high", 1, False)],
)
def test_responses_are_compressed_for_clients_that_accept_it(
    fronts: Fronts, level: str, understood: Any, compressed: Any
) -> None:
    options = [("grpc.compression_enabled_algorithms_bitset", understood)]
    with fronts(grpc_infer_response_compression_level=level) as running:
        running.service.large_output = bytes(500_000)
        relay = Relay(running.grpc_port)
        with grpc.insecure_channel(relay.url, options) as channel:
            request = pb.ModelInferRequest(model_name="identity")
            response = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=WAIT_S)
        relay.close()
    assert response.raw_output_contents == [bytes(500_000)]
    assert (relay.received < 50_000) is compressed


def reflected(channel: Any) -> Any:
    """Return the names of services, requested as by grpcurl."""
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="inference.GRPCInferenceService"),
    ]
    listed, described = stub.ServerReflectionInfo(iter(requests), timeout=WAIT_S)
    assert described.file_descriptor_response.file_descriptor_proto
    return {service.name for service in listed.list_services_response.service}


def test_reflection_is_off_by_default(fronts: Fronts) -> None:
    with fronts() as running, grpc.insecure_channel(running.grpc) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            reflected(channel)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    with fronts(grpc_reflection=True) as running, grpc.insecure_channel(running.grpc) as channel:
        assert "inference.GRPCInferenceService" in reflected(channel)


def test_health_is_watched(fronts: Fronts) -> None:
    running_fronts = fronts()
    with running_fronts as running:
        channel = grpc.insecure_channel(running.grpc)
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=WAIT_S)
        assert next(watch) == b"\x08\x01"
        running.service.is_ready = False
        assert next(watch) == b"\x08\x02"
    assert list(watch) == []
    channel.close()


def test_connections_are_closed_at_their_maximum_age(fronts: Fronts) -> None:
    with fronts(grpc_max_connection_age=300, grpc_max_connection_age_grace=100) as running:
        results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        with grpc_client.InferenceServerClient(running.grpc) as client:
            client.start_stream(lambda result, error: results.put(error))
            error = results.get(timeout=WAIT_S)
        assert error.status() == "StatusCode.UNAVAILABLE"


def test_connections_are_limited_per_port(fronts: Fronts) -> None:
    with fronts(max_connections="1") as running:
        for port in (running.http_port, int(running.grpc.rpartition(":")[2])):
            with socket.create_connection(("127.0.0.1", port), WAIT_S) as first:
                first.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
                assert first.recv(1)
                with (
                    socket.create_connection(("127.0.0.1", port), WAIT_S) as second,
                    contextlib.suppress(ConnectionResetError),
                ):
                    while second.recv(4096):  # the greeting of HTTP/2
                        pass
