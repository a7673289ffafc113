"""Clients of TensorFlow Serving and TorchServe get the answers that they would get from their servers."""

import json

import grpc
import numpy as np
import pytest

from app.protocol.tfserving import messages
from tests.contract.conftest import Addresses
from tests.unit.app.ingress.clouds.http_calls import Answer, ask

ROWS = [[*range(16)], [*range(16, 32)]]
INT32 = 3


@pytest.fixture
def port(server: Addresses) -> int:
    return int(server.http.rpartition(":")[2])


def predict(port: int, **document: object) -> Answer:
    return ask(port, "POST", "/v1/models/simple:predict", json.dumps(document).encode())


def test_rest_predictions_are_those_of_the_model(port: int) -> None:
    rows = predict(port, instances=[{"INPUT0": row, "INPUT1": [1] * 16} for row in ROWS])
    sums, differences = [[[each + one for each in row] for row in ROWS] for one in (1, -1)]
    expected = [{"OUTPUT0": a, "OUTPUT1": b} for a, b in zip(sums, differences, strict=True)]
    assert rows.document == {"predictions": expected}
    columns = predict(port, inputs={"INPUT0": ROWS, "INPUT1": [[1] * 16] * 2})
    assert columns.document == {"outputs": {"OUTPUT0": sums, "OUTPUT1": differences}}


def test_rest_errors_are_those_of_the_request_check(port: int) -> None:
    answer = predict(port, instances=[{"INPUT0": [1], "INPUT1": [1]}])
    assert answer.status == 400 and "unexpected shape for input 'INPUT" in answer.document["error"]


def test_rest_status_and_metadata(port: int) -> None:
    (status,) = ask(port, "GET", "/v1/models/simple").document["model_version_status"]
    assert (status["version"], status["state"]) == ("1", "AVAILABLE")
    document = ask(port, "GET", "/v1/models/simple/metadata").document
    signature = document["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["inputs"]["INPUT0"]["dtype"] == "DT_INT32"


def test_grpc_predictions_are_those_of_the_model(server: Addresses) -> None:
    request = messages.message_class("PredictRequest")()
    request.model_spec.name = "simple"
    for name in ("INPUT0", "INPUT1"):
        request.inputs[name].dtype = INT32
        for size in (2, 16):
            request.inputs[name].tensor_shape.dim.add(size=size)
        request.inputs[name].tensor_content = np.array(ROWS, np.int32).tobytes()
    with grpc.insecure_channel(server.grpc) as channel:
        call = channel.unary_unary(
            "/tensorflow.serving.PredictionService/Predict",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=messages.message_class("PredictResponse").FromString,
        )
        outputs = call(request, timeout=10).outputs
    assert list(outputs["OUTPUT0"].int_val) == [2 * each for row in ROWS for each in row]
    assert set(outputs["OUTPUT1"].int_val) == {0}


def test_a_handler_of_torchserve_answers(port: int) -> None:
    body = {"Content-Type": "application/json"}
    for path in ("/predictions/doubler", "/predictions/doubler/2.0"):
        answer = ask(port, "POST", path, b"[1, 2.5]", body)
        assert (answer.status, answer.content_type, answer.document) == (200, "application/json", [2, 5.0])
    assert ask(port, "POST", "/predictions/doubler", b"\xff").body == repr(bytearray(b"\xff")).encode()
    form = b'--x\r\nContent-Disposition: form-data; name="data"\r\n\r\nabc\r\n--x--\r\n'
    answer = ask(
        port, "POST", "/predictions/doubler", form, {"Content-Type": "multipart/form-data; boundary=x"}
    )
    assert answer.body == repr(bytearray(b"abc")).encode()
    assert ask(port, "GET", "/ping").document == {"status": "Healthy"}
