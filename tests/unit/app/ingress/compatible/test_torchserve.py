"""TorchServe's inference API, asked as its clients ask."""

import json
from collections.abc import Callable, Iterator

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.datatypes import pack_bytes
from app.core.errors import internal
from app.core.tensors import InferRequest, InferResponse, Tensor
from tests.unit.app.http_fakes import FakeService
from tests.unit.app.ingress.clouds.http_calls import Answer, ask
from tests.unit.app.ingress.running_fronts import Fronts

Ask = Callable[..., Answer]
FIELDS = "application/x-www-form-urlencoded"
CONFIG = """
name: "identity" backend: "python" max_batch_size: 4
input [{ name: "names" data_type: TYPE_STRING dims: [ -1 ] }, { name: "content_types" data_type: TYPE_STRING dims: [ -1 ] },
       { name: "parts" data_type: TYPE_STRING dims: [ -1 ] }]
output [{ name: "answer" data_type: TYPE_STRING dims: [ 1 ] }, { name: "content_type" data_type: TYPE_STRING dims: [ 1 ] }]
"""  # noqa: E501


class Migrated(FakeService):
    """Answers with the parts of a request as JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.config = text_format.Parse(CONFIG, mc.ModelConfig())

    def answer(self, request: InferRequest) -> InferResponse:
        columns = [[value.decode("latin-1") for value in tensor.array()[0]] for tensor in request.inputs]
        assert {tensor.shape[0] for tensor in request.inputs} == {1}
        answer = json.dumps(list(zip(*columns, strict=True))).encode()
        outputs = [
            Tensor(name, "BYTES", (1, 1), pack_bytes([value]))
            for name, value in (("answer", answer), ("content_type", b"application/json"))
        ]
        return InferResponse(request.model_name, "1", tuple(outputs), request.id)


@pytest.fixture
def torchserve(fronts: Fronts) -> Iterator[Ask]:
    with fronts(service=Migrated(), allow_torchserve=True) as running:
        yield lambda *arguments, **options: ask(running.http_port, *arguments, **options)


@pytest.mark.parametrize("path", ["/predictions/identity", "/predictions/identity/1.0"])
def test_a_body_is_one_part(torchserve: Ask, path: str) -> None:
    answer = torchserve("POST", path, b"\xff\x00", {"Content-Type": "image/png"})
    assert (answer.status, answer.content_type) == (200, "application/json")
    assert answer.document == [["body", "image/png", "\xff\x00"]]


def test_a_form_has_several_parts(torchserve: Ask) -> None:
    parts = [
        b'Content-Disposition: form-data; name="data"; filename="a.bin"\r\n'
        b"Content-Type: application/octet-stream\r\n\r\n\xff\r\n\x00",
        b'Content-Disposition: form-data; name="file"; filename="b"\r\n\r\nc',
        b'Content-Disposition: form-data; name="text"\r\nContent-Type: text/plain\r\n\r\nb',
    ]
    body = b"".join(b"--xyz\r\n%b\r\n" % part for part in parts) + b"--xyz--\r\n"
    answer = torchserve(
        "POST", "/predictions/identity", body, {"Content-Type": "multipart/form-data; boundary=xyz"}
    )
    assert answer.document == [
        ["data", "application/octet-stream", "\xff\r\n\x00"],
        ["file", "application/octet-stream", "c"],
        ["text", "", "b"],
    ], "a type is that of a file"


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        (b"a=1&b=t+w%C3%A9o&c=", [["a", "", "1"], ["b", "", "t w\xc3\xa9o"], ["c", "", ""]]),
        (b"no form", [["body", FIELDS, "no form"]]),
        (b"\xff=\xd8", [["body", FIELDS, "\xff=\xd8"]]),
        (b"", [["body", FIELDS, ""]]),
    ],
)
def test_fields_of_a_form_are_parts(torchserve: Ask, body: bytes, parts: list[list[str]]) -> None:
    answer = torchserve("POST", "/predictions/identity", body, {"Content-Type": FIELDS})
    assert answer.document == parts


def test_a_handler_that_fails_is_an_error_of_torchserve(fronts: Fronts) -> None:
    service = Migrated()
    service.answer = _failing  # type: ignore[method-assign]
    with fronts(service=service, allow_torchserve=True) as running:
        answer = ask(running.http_port, "POST", "/predictions/identity", b"x")
    expected = {"code": 503, "type": "InternalServerException", "message": "Prediction failed"}
    assert (answer.status, answer.document) == (503, expected)


def _failing(request: InferRequest) -> InferResponse:
    raise internal("Failed to process the request(s) for model 'identity', message: a secret")


def test_a_form_without_parts_is_refused(torchserve: Ask) -> None:
    for content_type in ("multipart/form-data", "multipart/form-data; boundary=x"):
        answer = torchserve("POST", "/predictions/identity", b"x", {"Content-Type": content_type})
        assert answer.status == 400 and answer.document["type"] == "BadRequestException"


def test_unknown_models_are_errors_of_torchserve(torchserve: Ask) -> None:
    answer = torchserve("POST", "/predictions/none", b"")
    expected = {"code": 404, "type": "ModelNotFoundException", "message": "Model not found: none"}
    assert (answer.status, answer.document) == (404, expected)
    text = "Model version: 2 does not exist for model: identity"
    assert torchserve("POST", "/predictions/identity/2.0", b"").document["message"] == text


def test_ping_says_whether_the_server_is_healthy(fronts: Fronts) -> None:
    service = Migrated()
    with fronts(service=service, allow_torchserve=True) as running:
        assert ask(running.http_port, "GET", "/ping").document == {"status": "Healthy"}
        service.is_ready = False
        answer = ask(running.http_port, "GET", "/ping")
        assert (answer.status, answer.document) == (500, {"status": "Unhealthy"})


def test_another_model_is_refused(fronts: Fronts) -> None:
    with fronts(allow_torchserve=True) as running:
        answer = ask(running.http_port, "POST", "/predictions/identity", b"x")
    assert answer.status == 400 and "is no model of TorchServe" in answer.document["message"]
