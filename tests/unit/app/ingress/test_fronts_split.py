"""What the fronts do for a model in a rollout: read headers, and answer as the version that answered."""

import queue
import socket
import threading
from typing import Any

import msgspec
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client

from app.core.rollout.spec import HeaderRule
from app.core.rollout.split import Split
from app.core.tensors import InferRequest, InferResponse, RolloutHint
from app.routing.table import VersionEntry
from tests.unit.app.http_fakes import FakeService
from tests.unit.app.ingress.running_fronts import WAIT_S, Fronts, Running, infer, tensor

SPLIT = Split("r", "identity", stable=1, candidate=2, match=(HeaderRule("x-version", "new"),))
HEADERS = {"x-version": "new"}
CANDIDATE = RolloutHint("candidate")


class InRollout(FakeService):
    """The candidate answers, whose labels are other ones."""

    def __init__(self) -> None:
        super().__init__()
        self.hints: queue.SimpleQueue[RolloutHint | None] = queue.SimpleQueue()

    def resolve(self, name: str, version: str = "") -> VersionEntry:
        entry = super().resolve(name, version)
        if version:
            return entry
        labels: dict[str, tuple[str, ...]] = {"OUTPUT0": ("null", "eins", "zwei")}
        rival = msgspec.structs.replace(entry, version=2, labels=labels)
        return msgspec.structs.replace(entry, split=SPLIT, rival=rival)

    def answer(self, request: InferRequest) -> InferResponse:
        self.hints.put(request.rollout)
        version = request.model_version or "2"
        return msgspec.structs.replace(super().answer(request), model_version=version)


def connected(running: Running, package: Any) -> Any:
    return package.InferenceServerClient(running.http if package is http_client else running.grpc)


@pytest.mark.parametrize("package", [http_client, grpc_client])
def test_headers_of_unversioned_requests_are_heeded(fronts: Fronts, package: Any) -> None:
    service = InRollout()
    with fronts(service=service) as running, connected(running, package) as client:
        for headers, version, expected in (
            (HEADERS, "", CANDIDATE),
            ({"x-version": "old"}, "", None),
            (HEADERS, "1", None),
        ):
            infer(client, package, headers=dict(headers), model_version=version)
            assert service.hints.get(timeout=WAIT_S) == expected


def test_headers_of_streams_and_of_generate_are_heeded(fronts: Fronts) -> None:
    service = InRollout()
    with fronts(service=service) as running:
        with grpc_client.InferenceServerClient(running.grpc) as client:
            answered = threading.Event()
            client.start_stream(lambda result, error: answered.set(), headers={"x-version": "new"})
            client.async_stream_infer("identity", [tensor(grpc_client)])
            assert service.hints.get(timeout=WAIT_S) == CANDIDATE and answered.wait(WAIT_S)
        with socket.create_connection(("127.0.0.1", running.http_port), WAIT_S) as connection:
            body = b'{"INPUT0":[1.0]}'
            head = "POST /v2/models/identity/generate HTTP/1.1\r\nX-Version: new\r\n"
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert service.hints.get(timeout=WAIT_S) == CANDIDATE


@pytest.mark.parametrize("package", [http_client, grpc_client])
@pytest.mark.parametrize(("version", "label"), [("", "eins"), ("1", "one")])
def test_classes_have_the_labels_of_the_version_that_answered(
    fronts: Fronts, package: Any, version: str, label: str
) -> None:
    with fronts(service=InRollout()) as running, connected(running, package) as client:
        given = package.InferInput("INPUT0", [1, 3], "FP32")
        given.set_data_from_numpy(np.array([[0, 5, 1]], np.float32))
        outputs = [package.InferRequestedOutput("OUTPUT0", class_count=1)]
        answer = client.infer("identity", [given], version, outputs=outputs)
    assert answer.as_numpy("OUTPUT0").tolist() == [[f"5.000000:1:{label}".encode()]]
