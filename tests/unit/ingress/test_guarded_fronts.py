"""The fronts as the settings compose them, with TLS, restrictions and forwarding, asked by tritonclient."""

import asyncio
import queue
import socket
import ssl
import threading
from contextlib import contextmanager
from functools import partial

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
import tritonclient.http.aio as http_aio_client
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException

from app.core.live_settings import LiveSettings
from app.ingress.fronts import open_fronts
from app.ingress.observer import Observer
from app.settings import from_args
from app.transport.loop import LoopThread
from tests.certificates import Authority
from tests.server import free_port
from tests.unit.ingress.http_fakes import FakeService

WAIT_S = 10.0
# The HTTP client writes into the headers it is given: each call gets a copy.
SECRET = {"infer-key": "infer-value"}
GRPC_SECRET = {"triton-grpc-protocol-infer-key": "infer-value"}
HTTP_TEXT = "This API is restricted, expecting header 'infer-key'"
GRPC_TEXT = "This protocol is restricted, expecting header 'triton-grpc-protocol-infer-key'"

pytestmark = pytest.mark.usefixtures("either_grpc_front")


class RecordingService(FakeService):
    """Keeps the parameters of the requests it gets."""

    def __init__(self):
        super().__init__()
        self.parameters = queue.SimpleQueue()

    def answer(self, request):
        self.parameters.put(request.parameters)
        return super().answer(request)


class Running:
    """Fronts on a loop in a thread of its own."""

    def __init__(self, directory, **args):
        self.service = RecordingService()
        self.http_port, self.grpc_port = free_port(), free_port()
        ports = {"http_port": self.http_port, "grpc_port": self.grpc_port, "allow_metrics": False}
        settings = from_args({"model_repository": str(directory), **ports, **args})
        self._loop = LoopThread("fronts")
        self._fronts = self._loop.call(open_fronts(settings, self.service, None, Observer(LiveSettings())))
        self.http, self.grpc = f"127.0.0.1:{self.http_port}", f"127.0.0.1:{self.grpc_port}"

    def close(self):
        for front in self._fronts:
            self._loop.call(front.stop(0.2))
        self._loop.stop()


@pytest.fixture
def fronts(tmp_path):
    """Starts fronts with given settings."""

    @contextmanager
    def start(**args):
        running = Running(tmp_path, **args)
        try:
            yield running
        finally:
            running.close()

    return start


def tensor(module, size=4):
    given = module.InferInput("INPUT0", [1, size], "FP32")
    given.set_data_from_numpy(np.zeros((1, size), np.float32))
    return given


def infer(client, module, **options):
    return client.infer("identity", [tensor(module)], **options).as_numpy("OUTPUT0").tolist()


def refusal(call):
    with pytest.raises(InferenceServerException) as refused:
        call()
    return refused.value.status(), refused.value.message()


ZEROS = [[0.0] * 4]


# Restrictions.


@pytest.fixture
def restricted(fronts):
    with fronts(
        http_restricted_api="inference,model-repository:Infer-Key=infer-value".replace(
            "Infer-Key", "infer-key"
        ),
        grpc_restricted_protocol="inference,model-repository:infer-key=infer-value",
    ) as running:
        yield running


@pytest.mark.parametrize("headers", [None, {"infer-key": "infer-valu"}, {"other": "infer-value"}])
def test_http_refuses_without_the_header(restricted, headers):
    with http_client.InferenceServerClient(restricted.http) as client:
        for call in (
            partial(infer, client, http_client),
            partial(client.load_model, "m"),
            client.get_model_repository_index,
        ):
            assert refusal(partial(call, headers=dict(headers or {}))) == ("403", HTTP_TEXT)
        assert client.is_server_ready() and client.get_server_metadata()["name"] == "triton"
    assert restricted.service.requests == 0 and restricted.service.loaded == []


def test_http_answers_with_the_header(restricted):
    with http_client.InferenceServerClient(restricted.http) as client:
        for _ in range(2):
            assert infer(client, http_client, headers={"INFER-Key": "infer-value"}) == ZEROS
            assert refusal(partial(infer, client, http_client))[0] == "403"
        client.load_model("m", headers=dict(SECRET))
    assert len(restricted.service.loaded) == 1


@pytest.mark.parametrize(
    "path", ["/v2/models/identity/infer", "/v2/models/identity/generate", "/v2/repository/index"]
)
def test_http_refuses_a_restricted_path_by_any_method(restricted, path):
    for method in ("GET", "POST", "PUT"):
        with socket.create_connection(("127.0.0.1", restricted.http_port), WAIT_S) as connection:
            connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            answer = b"".join(iter(partial(connection.recv, 65536), b""))
        assert answer.startswith(b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\n")
        assert answer.endswith(f'{{"error":"{HTTP_TEXT}"}}'.encode())


def test_the_aio_client_is_treated_alike(restricted):
    async def ask():
        async with http_aio_client.InferenceServerClient(restricted.http) as client:
            with pytest.raises(InferenceServerException, match="This API is restricted"):
                await client.infer("identity", [tensor(http_client)])
            return await client.infer("identity", [tensor(http_client)], headers=dict(SECRET))

    assert asyncio.run(ask()).as_numpy("OUTPUT0").tolist() == ZEROS


@pytest.mark.parametrize("headers", [None, SECRET, {"triton-grpc-protocol-infer-key": "x"}])
def test_grpc_refuses_without_the_metadata(restricted, headers):
    with grpc_client.InferenceServerClient(restricted.grpc) as client:
        for call in (
            partial(infer, client, grpc_client),
            partial(client.load_model, "m"),
            client.get_model_repository_index,
        ):
            assert refusal(partial(call, headers=headers)) == ("StatusCode.UNAVAILABLE", GRPC_TEXT)
        assert client.is_server_ready() and client.get_server_metadata().name == "triton"
    assert restricted.service.loaded == []


def test_grpc_answers_with_the_metadata(restricted):
    with grpc_client.InferenceServerClient(restricted.grpc) as client:
        assert infer(client, grpc_client, headers=GRPC_SECRET) == ZEROS
        client.load_model("m", headers=GRPC_SECRET)


@pytest.mark.parametrize(("headers", "admitted"), [(None, False), (GRPC_SECRET, True)])
def test_grpc_streams_are_restricted(restricted, headers, admitted):
    results = queue.SimpleQueue()
    with grpc_client.InferenceServerClient(restricted.grpc) as client:
        client.start_stream(lambda result, error: results.put(error or result), headers=headers)
        if admitted:
            client.async_stream_infer("identity", [tensor(grpc_client)])
        result = results.get(timeout=WAIT_S)
        if admitted:
            assert result.as_numpy("OUTPUT0").tolist() == ZEROS
        else:
            assert (result.status(), result.message()) == ("StatusCode.UNAVAILABLE", GRPC_TEXT)


def test_grpc_health_service_is_in_the_health_category(fronts):
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


# TLS.


def http_over_tls(url, root, pair=None):
    def context():
        made = ssl.create_default_context(cafile=str(root))
        if pair:
            made.load_cert_chain(pair.cert, pair.key)
        return made

    return http_client.InferenceServerClient(
        url, ssl=True, ssl_context_factory=context, connection_timeout=WAIT_S, network_timeout=WAIT_S
    )


def grpc_over_tls(url, root, pair=None):
    files = {"private_key": str(pair.key), "certificate_chain": str(pair.cert)} if pair else {}
    return grpc_client.InferenceServerClient(url, ssl=True, root_certificates=str(root), **files)


def tls(front, pair, root=None):
    mutual = {f"{front}_use_ssl_mutual": True, f"{front}_root_cert": str(root)} if root else {}
    return {
        f"{front}_use_ssl": True,
        f"{front}_server_cert": str(pair.cert),
        f"{front}_server_key": str(pair.key),
    } | mutual


def test_https(fronts, authority, pair):
    with fronts(**tls("http", pair)) as running, http_over_tls(running.http, authority.root) as client:
        assert client.is_server_ready()
        for size in (4, 1_000_000):
            output = client.infer("identity", [tensor(http_client, size)]).as_numpy("OUTPUT0")
            assert output.shape == (1, size)


def test_https_answers_what_it_rejects(fronts, authority, pair):
    with fronts(http_max_header_size=2048, **tls("http", pair)) as running:
        context = ssl.create_default_context(cafile=str(authority.root))
        plain = socket.create_connection(("127.0.0.1", running.http_port), WAIT_S)
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
            connection.sendall(b"GET /" + b"x" * 4096 + b" HTTP/1.1\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 431 ")


def test_plain_http_is_not_answered_where_tls_is(fronts, pair):
    with (
        fronts(**tls("http", pair)) as running,
        socket.create_connection(("127.0.0.1", running.http_port), WAIT_S) as connection,
    ):
        connection.sendall(b"GET /v2/health/live HTTP/1.1\r\n\r\n")
        try:
            answer = connection.recv(65536)
        except ConnectionResetError:
            answer = b""
    assert b"HTTP" not in answer


def test_mutual_https(fronts, authority, pair, tmp_path):
    with fronts(**tls("http", pair, authority.root)) as running:
        with http_over_tls(running.http, authority.root, authority.issue("client")) as client:
            assert infer(client, http_client) == ZEROS
        (tmp_path / "other").mkdir()
        stranger = Authority(tmp_path / "other", "stranger").issue("client")
        for refused in (None, stranger):
            with http_over_tls(running.http, authority.root, refused) as client, pytest.raises(Exception):  # noqa: B017
                infer(client, http_client)
    assert running.service.requests == 1


def test_grpc_over_tls(fronts, authority, pair):
    with fronts(**tls("grpc", pair)) as running:
        with grpc_over_tls(running.grpc, authority.root) as client:
            assert infer(client, grpc_client) == ZEROS
        with grpc_client.InferenceServerClient(running.grpc) as client:
            assert refusal(client.is_server_live)[0] == "StatusCode.UNAVAILABLE"


def test_mutual_grpc(fronts, authority, pair, tmp_path):
    with fronts(**tls("grpc", pair, authority.root)) as running:
        with grpc_over_tls(running.grpc, authority.root, authority.issue("client")) as client:
            assert infer(client, grpc_client) == ZEROS
        (tmp_path / "other").mkdir()
        stranger = Authority(tmp_path / "other", "stranger").issue("client")
        for refused in (None, stranger):
            with grpc_over_tls(running.grpc, authority.root, refused) as client:
                assert refusal(client.is_server_live)[0] == "StatusCode.UNAVAILABLE"


# Forwarding.


@pytest.mark.parametrize("headers", [{"My_Header_1": "välue", "other": "no"}])
def test_http_forwards_headers(fronts, headers):
    with fronts(http_header_forward_pattern="my_header.*") as running:
        with socket.create_connection(("127.0.0.1", running.http_port), WAIT_S) as connection:
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            given = '{"name":"INPUT0","datatype":"FP32","shape":[1],"data":[1]}'
            body = f'{{"parameters":{{"own":1}},"inputs":[{given}]}}'
            head = f"POST /v2/models/identity/infer HTTP/1.1\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
            connection.sendall((head + body).encode())
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert running.service.parameters.get(timeout=WAIT_S) == {"own": 1, "My_Header_1": "välue"}


def test_http_refuses_to_forward_a_reserved_header(fronts):
    text = "Header 'priority' is reserved for Triton usage and cannot be forwarded."
    with (
        fronts(http_header_forward_pattern="prio") as running,
        http_client.InferenceServerClient(running.http) as client,
    ):
        assert refusal(partial(infer, client, http_client, headers={"priority": "1"})) == ("400", text)
        assert infer(client, http_client) == ZEROS


def test_grpc_forwards_metadata_of_calls_and_streams(fronts):
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


def test_grpc_refuses_to_forward_reserved_metadata(fronts):
    text = "Header 'triton_x' is reserved for Triton usage and cannot be forwarded."
    results = queue.SimpleQueue()
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


# What the gRPC library is told.


def test_messages_over_the_limit(fronts):
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
    """Passes TCP on and counts what the server sends."""

    def __init__(self, port):
        self.received = 0
        self._upstream = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        client, _ = self._listener.accept()
        threading.Thread(target=self._pass, args=(client, self._upstream, False), daemon=True).start()
        self._pass(self._upstream, client, True)

    def _pass(self, source, target, counted):
        try:
            while data := source.recv(65536):
                self.received += len(data) if counted else 0
                target.sendall(data)
        except OSError:
            pass

    def close(self):
        self._upstream.close()
        self._listener.close()


@pytest.mark.parametrize(
    ("level", "understood", "compressed"),
    [("none", 7, False), ("low", 7, True), ("medium", 7, True), ("high", 7, True), ("high", 1, False)],
)
def test_responses_are_compressed_for_who_understands(fronts, level, understood, compressed):
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


def reflected(channel):
    """Names of services, asked as grpcurl does."""
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="inference.GRPCInferenceService"),
    ]
    listed, described = stub.ServerReflectionInfo(iter(requests), timeout=WAIT_S)
    assert described.file_descriptor_response.file_descriptor_proto
    return {service.name for service in listed.list_services_response.service}


def test_reflection_is_off_unless_asked_for(fronts):
    with fronts() as running, grpc.insecure_channel(running.grpc) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            reflected(channel)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    with fronts(grpc_reflection=True) as running, grpc.insecure_channel(running.grpc) as channel:
        assert "inference.GRPCInferenceService" in reflected(channel)


def test_health_is_watched(fronts):
    running_fronts = fronts()
    with running_fronts as running:
        channel = grpc.insecure_channel(running.grpc)
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=WAIT_S)
        assert next(watch) == b"\x08\x01"
        running.service.is_ready = False
        assert next(watch) == b"\x08\x02"
    assert list(watch) == []
    channel.close()


def test_connections_end_at_their_age(fronts):
    with fronts(grpc_max_connection_age=300, grpc_max_connection_age_grace=100) as running:
        results = queue.SimpleQueue()
        with grpc_client.InferenceServerClient(running.grpc) as client:
            client.start_stream(lambda result, error: results.put(error))
            error = results.get(timeout=WAIT_S)
        assert error.status() == "StatusCode.UNAVAILABLE"
