"""A whole server with TLS, restricted APIs and header forwarding, two ingress replicas included."""

import base64
import ipaddress
import json
import re
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.grpc import InferenceServerClientPlugin
from tritonclient.http.auth import BasicAuth
from tritonclient.utils import InferenceServerException

from tests.certificates import Authority, Pair
from tests.server import START_S, Server, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

BASIC = "Basic " + base64.b64encode(b"user:password").decode()
CONFIG = """
backend: "python"
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "PARAMETERS" data_type: TYPE_STRING dims: [ 1 ] }
"""
MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        parameters = request.parameters()
        text = parameters if isinstance(parameters, str) else __import__("json").dumps(parameters)
        return pb_utils.InferenceResponse([pb_utils.Tensor("PARAMETERS", np.array([text.encode()], object))])
"""


class Guarded(NamedTuple):
    """A server and what its clients need."""

    server: Server
    root: Path
    pair: Pair

    def http(self) -> tritonclient.http.InferenceServerClient:
        # A function without parameters: the client gives others a certificate store of its own.
        return tritonclient.http.InferenceServerClient(
            self.server.http_url,
            ssl=True,
            ssl_context_factory=lambda: ssl.create_default_context(cafile=str(self.root)),
        )

    def grpc(self) -> tritonclient.grpc.InferenceServerClient:
        return tritonclient.grpc.InferenceServerClient(
            self.server.grpc_url,
            ssl=True,
            root_certificates=str(self.root),
            private_key=str(self.pair.key),
            certificate_chain=str(self.pair.cert),
        )

    def ready(self) -> bool:
        try:
            with self.http() as client:
                return bool(client.is_server_ready())
        except ssl.SSLError:
            raise
        except OSError:
            return False


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("guarded")
    version = directory / "models" / "parameters" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(CONFIG)
    (version / "model.py").write_text(MODEL)
    authority = Authority(directory)
    pair = authority.issue("server")
    arguments = [
        f"--model-repository={directory / 'models'}",
        "--ingress-replicas=2",
        "--http-use-ssl=true",
        f"--http-server-cert={pair.cert}",
        f"--http-server-key={pair.key}",
        "--http-restricted-api=inference,statistics:infer-key=infer-value",
        f"--http-restricted-api=model-config:authorization={BASIC}",
        "--http-header-forward-pattern=my_.*",
        "--grpc-use-ssl-mutual=true",
        f"--grpc-server-cert={pair.cert}",
        f"--grpc-server-key={pair.key}",
        f"--grpc-root-cert={authority.root}",
        "--grpc-restricted-protocol=inference,statistics:infer-key=infer-value",
        f"--grpc-restricted-protocol=model-config:authorization={BASIC}",
        "--grpc-header-forward-pattern=my_.*",
        "--grpc-infer-response-compression-level=low",
    ]
    server = Server(arguments, directory / "server.log").start(wait=False)
    started = Guarded(server, authority.root, authority.issue("client"))
    try:
        wait_until(lambda: started.ready() or server.exited(), START_S, "the server is ready")
        assert not server.exited(), server.output()[-8000:]
        yield started
    finally:
        server.stop()


def test_what_asks_for_nothing_listens_on_this_machine_only(guarded: Guarded) -> None:
    """All that does but Serve's port of each replica, which asks for Ray's token."""
    found = guarded.server.listening()
    assert {"gcs_server", "raylet"} <= {name for name, _ in found}
    open_to_others = {name for name, address in found if not ipaddress.ip_address(address).is_loopback}
    assert all(name.startswith("ray::ServeReplica") for name in open_to_others)


@pytest.mark.parametrize(
    ("front", "key"), [("http", "infer-key"), ("grpc", "triton-grpc-protocol-infer-key")]
)
def test_a_guarded_request_reaches_its_model(guarded: Guarded, front: str, key: str) -> None:
    module = getattr(tritonclient, front)
    given = module.InferInput("INPUT0", [1], "FP32")
    given.set_data_from_numpy(np.zeros(1, np.float32))
    with getattr(guarded, front)() as client:
        for _ in range(8):  # over both replicas
            with pytest.raises(InferenceServerException, match=f"restricted, expecting header '{key}'"):
                client.infer("parameters", [given])
            result = client.infer("parameters", [given], headers={key: "infer-value", "my_user": "a"})
            assert json.loads(result.as_numpy("PARAMETERS")[0]) == {"my_user": "a"}
        with pytest.raises(InferenceServerException, match="restricted"):
            client.get_inference_statistics("parameters")
        assert client.get_inference_statistics("parameters", headers={key: "infer-value"})


class GrpcAuth(InferenceServerClientPlugin):  # type: ignore[misc]
    """What the client's own plug-in does over HTTP, with the name that the gRPC front expects."""

    def __call__(self, request: Any) -> None:
        request.headers["triton-grpc-protocol-authorization"] = BASIC


@pytest.mark.parametrize(
    ("front", "plug_in"), [("http", BasicAuth("user", "password")), ("grpc", GrpcAuth())]
)
def test_credentials_of_a_plug_in(guarded: Guarded, front: str, plug_in: Any) -> None:
    with getattr(guarded, front)() as client:
        with pytest.raises(InferenceServerException, match="restricted, expecting header"):
            client.get_model_config("parameters")
        client.register_plugin(plug_in)
        assert client.get_model_config("parameters")
        client.unregister_plugin()
        with pytest.raises(InferenceServerException, match="restricted, expecting header"):
            client.get_model_config("parameters")


def test_without_tls_nobody_is_served(guarded: Guarded) -> None:
    status, body = guarded.server.get("/v2/health/live")
    assert status == 400 and b"https" in body, "it says what the port speaks, and nothing else"
    with (
        tritonclient.grpc.InferenceServerClient(guarded.server.grpc_url) as client,
        pytest.raises(InferenceServerException),
    ):
        client.is_server_live()
    uncertified = tritonclient.grpc.InferenceServerClient(
        guarded.server.grpc_url, ssl=True, root_certificates=str(guarded.root)
    )
    with uncertified as client, pytest.raises(InferenceServerException):
        client.is_server_live()


def test_metrics_stay_open_and_tell_when_certificates_expire(guarded: Guarded) -> None:
    status, page = guarded.server.get("/metrics", port=guarded.server.metrics_port)
    assert status == 200
    found = re.findall(r'certificate_expiry_timestamp_seconds{front="(\w+)"} ([\d.]+)', page.decode())
    assert {front: float(at) - time.time() for front, at in found} == {
        front: pytest.approx(86400, abs=600) for front in ("grpc", "http")
    }
