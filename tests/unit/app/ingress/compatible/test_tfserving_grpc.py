"""TensorFlow Serving's gRPC API, called over a plain channel, as its clients do."""

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from app.protocol.tfserving import messages
from tests.unit.app.ingress.compatible.test_tfserving import STRINGS, TWO, Service
from tests.unit.app.ingress.running_fronts import Fronts

Call = Callable[..., Any]
FLOAT, INT32, STRING = 1, 3, 7


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def call(fronts: Fronts, service: Service) -> Iterator[Call]:
    with (
        fronts(service=service, allow_tfserving=True) as running,
        grpc.insecure_channel(running.grpc) as channel,
    ):

        def ask(method: str, request: Any, kind: str = "Prediction") -> Any:
            answer = messages.message_class(f"{method}Response")
            stub = channel.unary_unary(
                f"/tensorflow.serving.{kind}Service/{method}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=answer.FromString,
            )
            return stub(request, timeout=10)

        yield ask


def request(kind: str, model: str = "identity", **spec: Any) -> Any:
    made = messages.message_class(f"{kind}Request")()
    made.model_spec.name = model
    for name, value in spec.items():
        if name == "version":
            made.model_spec.version.value = value
        else:
            setattr(made.model_spec, name, value)
    return made


def put(message: Any, name: str, dtype: int, shape: tuple[int, ...], **values: Any) -> None:
    tensor = message.inputs[name]
    tensor.dtype = dtype
    for size in shape:
        tensor.tensor_shape.dim.add(size=size)
    for field, value in values.items():
        if isinstance(value, bytes):
            tensor.tensor_content = value
        else:
            getattr(tensor, field).extend(value)


def shape(tensor: Any) -> list[int]:
    return [dim.size for dim in tensor.tensor_shape.dim]


def test_predict_with_values_and_with_bytes(call: Call, service: Service) -> None:
    service.use(TWO)
    message = request("Predict")
    put(message, "INPUT0", FLOAT, (2, 2), tensor_content=np.array([1, 2, 3, 4], np.float32).tobytes())
    put(message, "INPUT1", INT32, (2,), int_val=[5])  # the last value stands for the rest
    answer = call("Predict", message)
    assert list(answer.outputs["OUTPUT0"].float_val) == [1, 2, 3, 4]
    assert (shape(answer.outputs["OUTPUT0"]), answer.outputs["OUTPUT0"].dtype) == ([2, 2], FLOAT)
    assert list(answer.outputs["OUTPUT1"].int_val) == [5, 5] and shape(answer.outputs["OUTPUT1"]) == [2]
    assert (answer.model_spec.name, answer.model_spec.version.value) == ("identity", 1)
    assert answer.model_spec.signature_name == "serving_default"


def test_predict_strings(call: Call, service: Service) -> None:
    service.use(STRINGS)
    message = request("Predict", version=1)
    put(message, "INPUT0", STRING, (2,), string_val=[b"a", b"\xff"])
    assert list(call("Predict", message).outputs["OUTPUT0"].string_val) == [b"a", b"\xff"]


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ({"model": "none"}, "NOT_FOUND", "Servable not found for request: Latest(none)"),
        ({"version": 9}, "NOT_FOUND", "Servable not found for request: Specific(identity, 9)"),
        ({"version_label": "x"}, "INVALID_ARGUMENT", "Unrecognized servable version label: x"),
        (
            {"signature_name": "x"},
            "INVALID_ARGUMENT",
            'Serving signature name: "x" not found in signature def',
        ),
        ({"model": ""}, "INVALID_ARGUMENT", "Missing ModelSpec"),
        ({"dtype": INT32}, "INVALID_ARGUMENT", "input 'INPUT0' has another data type than DT_FLOAT"),
        ({"shape": (1, 3)}, "INVALID_ARGUMENT", "input 'INPUT0' has 8 bytes, which does not fit its shape"),
        ({"shape": (-1, 2)}, "INVALID_ARGUMENT", "input 'INPUT0' has no valid shape"),
        ({"tensor": "x"}, "INVALID_ARGUMENT", "input size does not match signature"),
    ],
)
def test_bad_requests_are_refused(call: Call, change: dict[str, Any], code: str, text: str) -> None:
    dtype, size = change.pop("dtype", FLOAT), change.pop("shape", (1, 2))
    name = change.pop("tensor", "INPUT0")
    message = request("Predict", **change)
    put(message, name, dtype, size, tensor_content=bytes(8))
    with pytest.raises(grpc.RpcError) as refused:
        call("Predict", message)
    assert refused.value.code().name == code and text in refused.value.details()


def test_a_value_is_not_expanded_without_limit(call: Call) -> None:
    message = request("Predict")
    put(message, "INPUT0", FLOAT, (1, 1 << 40), float_val=[1])
    with pytest.raises(grpc.RpcError, match="has 1 values, which does not fit its shape"):
        call("Predict", message)


def test_metadata_and_status(call: Call, service: Service) -> None:
    service.use(TWO)
    message = request("GetModelMetadata")
    message.metadata_field.append("signature_def")
    answer = call("GetModelMetadata", message)
    definitions = messages.message_class("SignatureDefMap")()
    assert answer.metadata["signature_def"].Unpack(definitions)
    signature = definitions.signature_def["serving_default"]
    assert [dim.size for dim in signature.inputs["INPUT1"].tensor_shape.dim] == [-1]
    assert signature.outputs["OUTPUT0"].dtype == FLOAT
    rows = call("GetModelStatus", request("GetModelStatus"), "Model").model_version_status
    assert [(row.version, row.state, row.status.error_code) for row in rows] == [
        (3, 50, 0),
        (2, 30, 0),
        (1, 50, 2),
    ]
    with pytest.raises(grpc.RpcError, match="Could not find version 7 of model identity"):
        call("GetModelStatus", request("GetModelStatus", version=7), "Model")


def test_it_is_off_unless_asked_for(fronts: Fronts) -> None:
    with fronts() as running, grpc.insecure_channel(running.grpc) as channel:
        stub = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        with pytest.raises(grpc.RpcError) as refused:
            stub(b"", timeout=10)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
