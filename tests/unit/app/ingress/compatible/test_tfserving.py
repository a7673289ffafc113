"""TensorFlow Serving's REST API, asked as its clients ask; texts are TensorFlow Serving's."""

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc import service_pb2 as pb

from app.core.errors import invalid_arg
from app.core.tensors import InferRequest, InferResponse
from tests.unit.app.http_fakes import FakeService
from tests.unit.app.ingress.clouds.http_calls import Answer, ask
from tests.unit.app.ingress.running_fronts import Fronts

Ask = Callable[..., Answer]
TWO = """
name: "identity" backend: "python" max_batch_size: 8
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "INPUT1" data_type: TYPE_INT32 dims: [ 1 ] reshape { } }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "OUTPUT1" data_type: TYPE_INT32 dims: [ 1 ] reshape { } }]
"""  # noqa: E501
STRINGS = """
name: "identity" backend: "python"
input [{ name: "INPUT0" data_type: TYPE_STRING dims: [ -1 ] }]
output [{ name: "OUTPUT0" data_type: TYPE_STRING dims: [ -1 ] }]
"""


class Service(FakeService):
    """Keeps the shapes of the requests it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def use(self, config: str) -> None:
        self.config = text_format.Parse(config, mc.ModelConfig())

    def answer(self, request: InferRequest) -> InferResponse:
        self.shapes = [tensor.shape for tensor in request.inputs]
        return super().answer(request)

    async def repository_index(self, ready: bool = False) -> pb.RepositoryIndexResponse:
        rows = [("1", "UNAVAILABLE", "no such file"), ("2", "READY", ""), ("3", "UNAVAILABLE", "unloaded")]
        index = pb.RepositoryIndexResponse.ModelIndex
        models = [index(name="identity", version=v, state=state, reason=why) for v, state, why in rows]
        return pb.RepositoryIndexResponse(models=[index(name="never"), *models])


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def tfserving(fronts: Fronts, service: Service) -> Iterator[Ask]:
    with fronts(service=service, allow_tfserving=True) as running:
        yield lambda *arguments, **options: ask(running.http_port, *arguments, **options)


def predict(tfserving: Ask, path: str = "/v1/models/identity", **document: Any) -> Answer:
    return tfserving("POST", f"{path}:predict", json.dumps(document).encode())


def test_rows_and_columns_of_one_input(tfserving: Ask) -> None:
    for path in ("/v1/models/identity", "/v1/models/identity/versions/1"):
        rows = predict(tfserving, path, instances=[[1.0, 2], [3, 4]])
        assert (rows.status, rows.content_type) == (200, "application/json")
        assert rows.document == {"predictions": [[1, 2], [3, 4]]}
    named = predict(tfserving, signature_name="serving_default", instances=[{"INPUT0": [1]}, {"INPUT0": [2]}])
    assert named.document == {"predictions": [[1], [2]]}
    assert predict(tfserving, inputs=[[1.0]]).document == {"outputs": [[1]]}
    assert predict(tfserving, inputs={"INPUT0": [[0.1]]}).document["outputs"][0][0] == pytest.approx(0.1)


def test_rows_and_columns_of_several_inputs(tfserving: Ask, service: Service) -> None:
    service.use(TWO)
    rows = [{"INPUT0": [1.0, 2.0], "INPUT1": 3}, {"INPUT0": [4.0, 5.0], "INPUT1": 6}]
    answer = predict(tfserving, instances=rows)
    expected = [{"OUTPUT0": [1, 2], "OUTPUT1": 3}, {"OUTPUT0": [4, 5], "OUTPUT1": 6}]
    assert answer.document == {"predictions": expected}
    assert service.shapes == [(2, 2), (2, 1)], "the configuration's shapes"
    columns = predict(tfserving, inputs={"INPUT0": [[1.0, 2.0]], "INPUT1": [3]})
    assert columns.document == {"outputs": {"OUTPUT0": [[1, 2]], "OUTPUT1": [3]}}


def test_strings_are_text_or_base64(tfserving: Ask, service: Service) -> None:
    service.use(STRINGS)
    raw = {"b64": base64.b64encode(b"\xff\x00").decode()}
    answer = predict(tfserving, instances=["a", {"b64": "Yg=="}, raw])
    assert answer.document == {"predictions": ["a", "b", raw]}
    service.use(STRINGS.replace("PUT0", "PUT_bytes"))
    assert predict(tfserving, inputs=["a"]).document == {"outputs": [{"b64": "YQ=="}]}


def test_numbers_that_are_not_finite_are_literals(tfserving: Ask) -> None:
    answer = tfserving("POST", "/v1/models/identity:predict", b'{"instances": [[NaN, -Infinity]]}')
    assert answer.body == b'{"predictions": [[NaN, -Infinity]]}'


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "JSON Parse error: The document is empty"),
        (b"{", "JSON Parse error: "),
        (b"[" * 100_000, "JSON Parse error: "),
        (b"[]", "JSON Value: is not object"),
        (b"{}", "Missing 'inputs' or 'instances' key"),
        (b'{"inputs": [1], "instances": [1]}', "expecting only one of 'inputs' or 'instances'"),
        (b'{"instances": 1}', "Expecting 'instances' to be an list/array"),
        (b'{"instances": []}', "No values in 'instances' array"),
        (b'{"instances": [[1], {"INPUT0": [1]}]}', "Expecting value/list but got object at item 1"),
        (b'{"instances": [{"INPUT0": [1]}, [1]]}', "Expecting object but got list at item 1"),
        (b'{"instances": [{"x": [1]}]}', "keys must be equal to: INPUT0"),
        (b'{"inputs": {"x": [1]}}', "Missing named input: INPUT0 in 'inputs' object."),
        (b'{"instances": [[1], [1, 2]]}', "unexpected size"),
        (b'{"instances": [["a"]]}', "is not of expected type: float32"),
        (b'{"signature_name": 1, "instances": [[1]]}', "'signature_name' key must be a string value."),
        (
            b'{"signature_name": "x", "instances": [[1]]}',
            'Serving signature name: "x" not found in signature def',
        ),
    ],
)
def test_bad_requests_are_refused(tfserving: Ask, service: Service, body: bytes, text: str) -> None:
    answer = tfserving("POST", "/v1/models/identity:predict", body)
    assert answer.status == 400 and text in answer.document["error"]
    assert service.requests == 0


@pytest.mark.parametrize(("value", "text"), [(1.5, "int32"), (2**40, "int32"), (True, "int32")])
def test_integers_are_integers(tfserving: Ask, service: Service, value: Any, text: str) -> None:
    service.use(TWO)
    answer = predict(tfserving, inputs={"INPUT0": [[1.0]], "INPUT1": [value]})
    assert answer.status == 400 and f"is not of expected type: {text}" in answer.document["error"]


def test_unknown_models_are_named_as_servables(tfserving: Ask) -> None:
    answer = predict(tfserving, "/v1/models/none", instances=[1])
    assert (answer.status, answer.document["error"]) == (404, "Servable not found for request: Latest(none)")
    answer = predict(tfserving, "/v1/models/identity/versions/9", instances=[1])
    assert answer.document["error"] == "Servable not found for request: Specific(identity, 9)"
    assert (
        tfserving("GET", "/v1/models/none").document["error"] == "Could not find any versions of model none"
    )
    missing = tfserving("GET", "/v1/models/identity/versions/9")
    assert (missing.status, missing.document["error"]) == (404, "Could not find version 9 of model identity")


def test_labels_name_versions(tfserving: Ask, service: Service) -> None:
    service.config.parameters["version_labels"].string_value = '{"stable": 1}'
    assert predict(tfserving, "/v1/models/identity/labels/stable", instances=[[1]]).status == 200
    answer = predict(tfserving, "/v1/models/identity/labels/none", instances=[[1]])
    assert (answer.status, answer.document["error"]) == (400, "Unrecognized servable version label: none")


def test_status_lists_versions(tfserving: Ask) -> None:
    ok = {"error_code": "OK", "error_message": ""}
    failed = {"error_code": "UNKNOWN", "error_message": "no such file"}
    states = [("3", "END", ok), ("2", "AVAILABLE", ok), ("1", "END", failed)]
    rows = [{"version": version, "state": state, "status": status} for version, state, status in states]
    assert tfserving("GET", "/v1/models/identity").document == {"model_version_status": rows}
    one = tfserving("GET", "/v1/models/identity/versions/2").document
    assert one == {"model_version_status": rows[1:2]}


def test_metadata_is_the_signature(tfserving: Ask, service: Service) -> None:
    service.use(TWO)
    document = tfserving("GET", "/v1/models/identity/metadata").document
    assert document["model_spec"] == {"name": "identity", "signature_name": "", "version": "1"}
    described = document["metadata"]["signature_def"]["signature_def"]["serving_default"]
    sizes = {
        name: [dim["size"] for dim in info["tensor_shape"]["dim"]]
        for name, info in described["inputs"].items()
    }
    assert sizes == {"INPUT0": ["-1", "-1"], "INPUT1": ["-1"]}
    assert described["outputs"]["OUTPUT1"]["dtype"] == "DT_INT32"


def test_a_failed_inference_is_an_error(tfserving: Ask, service: Service) -> None:
    service.failure = invalid_arg("[request id: <id_unknown>] unexpected shape")
    answer = predict(tfserving, instances=[[1]])
    assert (answer.status, answer.document["error"]) == (400, "[request id: <id_unknown>] unexpected shape")


def test_it_is_off_unless_asked_for(fronts: Fronts) -> None:
    with fronts() as running:
        assert ask(running.http_port, "GET", "/v1/models/identity").status == 404


def test_restrictions_are_those_of_v2(fronts: Fronts, service: Service) -> None:
    body = json.dumps({"instances": [[1]]}).encode()
    with fronts(
        service=service, allow_tfserving=True, http_restricted_api="inference,metadata:k=v"
    ) as running:
        for method, path in (("POST", "/v1/models/identity:predict"), ("GET", "/v1/models/identity")):
            assert ask(running.http_port, method, path, body).status == 403
            assert ask(running.http_port, method, path, body, {"k": "v"}).status == 200
