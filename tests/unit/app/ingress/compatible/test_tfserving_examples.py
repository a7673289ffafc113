"""TensorFlow Serving's Classify and Regress, over REST and gRPC; texts are TensorFlow Serving's."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import grpc
import numpy as np
import pytest

from app.core.tensors import InferRequest, InferResponse, Tensor
from app.protocol.tfserving.messages import message_class
from tests.unit.app.ingress.clouds.http_calls import ask
from tests.unit.app.ingress.compatible.test_tfserving import Service
from tests.unit.app.ingress.running_fronts import Fronts

CONFIG = """
name: "identity" backend: "python" max_batch_size: 8
input {{ name: "inputs" data_type: TYPE_STRING dims: [ 1 ] reshape {{ }} }}
{outputs}
"""
CLASSES = """
output { name: "classes" data_type: TYPE_STRING dims: [ 2 ] }
output { name: "scores" data_type: TYPE_FP32 dims: [ 2 ] }
"""
VALUES = 'output { name: "outputs" data_type: TYPE_FP32 dims: [ 1 ] }'
LABELS = np.array([[b"a", b"b"]] * 2, np.object_)
SCORES = np.array([[0.25, 0.75], [1, 0]], np.float32)
EXAMPLES = [{"x": 1, "names": ["n", {"b64": "/w=="}]}, {"x": [2, 3], "y": 0.5}]
Ask = Callable[..., Any]


class Classifier(Service):
    """Keeps the examples of a request, and answers with these outputs, where they are asked for."""

    outputs: Mapping[str, Any]

    def use_outputs(self, config: str, **outputs: Any) -> None:
        self.use(CONFIG.format(outputs=config))
        self.outputs = outputs
        self.wanted: list[list[str]] = []

    def answer(self, request: InferRequest) -> InferResponse:
        (tensor,) = request.inputs
        self.shapes = [tensor.shape]
        self.examples = [message_class("Example").FromString(each) for each in tensor.array().ravel()]
        wanted = [each.name for each in request.outputs]
        self.wanted.append(wanted)
        tensors = tuple(Tensor.from_array(name, self.outputs[name]) for name in wanted)
        return InferResponse("identity", "1", outputs=tensors)


def _values(feature: Any) -> list[Any]:
    return [value for kind in ("bytes", "float", "int64") for value in getattr(feature, f"{kind}_list").value]


@pytest.fixture
def service() -> Classifier:
    made = Classifier()
    made.use_outputs(CLASSES, classes=LABELS, scores=SCORES)
    return made


@pytest.fixture
def rest(fronts: Fronts, service: Classifier) -> Iterator[Ask]:
    with fronts(service=service, allow_tfserving=True) as running:

        def called(verb: str, document: Any) -> Any:
            body = document if isinstance(document, bytes) else json.dumps(document).encode()
            return ask(running.http_port, "POST", f"/v1/models/identity:{verb}", body)

        yield called


@pytest.fixture
def rpc(fronts: Fronts, service: Classifier) -> Iterator[Ask]:
    with (
        fronts(service=service, allow_tfserving=True) as running,
        grpc.insecure_channel(running.grpc) as channel,
    ):

        def called(method: str, kind: str, *examples: bytes, context: bytes | None = None) -> Any:
            request = message_class(f"{kind}Request")()
            request.model_spec.name = "identity"
            if context is not None:
                request.input.example_list_with_context.context = context
                request.input.example_list_with_context.examples.extend(examples)
            else:
                request.input.example_list.examples.extend(examples)
            stub = channel.unary_unary(
                f"/tensorflow.serving.PredictionService/{method}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=message_class(f"{kind}Response").FromString,
            )
            return stub(request, timeout=10)

        yield called


BOTH = (
    CLASSES
    + VALUES
    + """
parameters { key: "signature_names" value { string_value: "[\\"classify_x\\", \\"regress_x\\"]" } }
"""
)
CLASSIFY, REGRESS = "tensorflow/serving/classify", "tensorflow/serving/regress"


@pytest.fixture
def multi(fronts: Fronts, service: Classifier) -> Iterator[Ask]:
    service.use_outputs(BOTH, classes=LABELS, scores=SCORES, outputs=np.array([[0.5], [2]], np.float32))
    with (
        fronts(service=service, allow_tfserving=True) as running,
        grpc.insecure_channel(running.grpc) as channel,
    ):

        def called(*tasks: tuple[str, str, str], examples: int = 2) -> Any:
            request = message_class("MultiInferenceRequest")()
            for model, signature, method in tasks:
                task = request.tasks.add(method_name=method)
                task.model_spec.name, task.model_spec.signature_name = model, signature
            request.input.example_list.examples.extend([b""] * examples)
            stub = channel.unary_unary(
                "/tensorflow.serving.PredictionService/MultiInference",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=message_class("MultiInferenceResponse").FromString,
            )
            return stub(request, timeout=10)

        yield called


def features(service: Classifier) -> list[dict[str, Any]]:
    return [
        {name: _values(each) for name, each in example.features.feature.items()}
        for example in service.examples
    ]


def test_classes_of_json(rest: Ask, service: Classifier) -> None:
    answer = rest("classify", {"examples": EXAMPLES, "context": {"shared": True}})
    assert answer.document == {"results": [[["a", 0.25], ["b", 0.75]], [["a", 1.0], ["b", 0.0]]]}
    assert service.shapes == [(2, 1)], "the configuration's shape"
    assert features(service) == [
        {"x": [1], "names": [b"n", b"\xff"], "shared": [1]},
        {"x": [2, 3], "y": [0.5], "shared": [1]},
    ]


def test_labels_or_scores_alone(rest: Ask, service: Classifier) -> None:
    service.use_outputs(CLASSES.splitlines()[1], classes=LABELS)
    assert rest("classify", {"examples": EXAMPLES}).document["results"][0] == [["a", 0], ["b", 0]]
    service.use_outputs(CLASSES.splitlines()[2], scores=SCORES)
    assert rest("classify", {"examples": EXAMPLES}).document["results"][1] == [["", 1], ["", 0]]


@pytest.mark.parametrize("shape", [(2,), (2, 1)])
def test_values_of_json(rest: Ask, service: Classifier, shape: tuple[int, ...]) -> None:
    service.use_outputs(VALUES, outputs=np.array([0.5, 2], np.float32).reshape(shape))
    assert rest("regress", {"examples": EXAMPLES}).document == {"results": [0.5, 2.0]}


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (b"[]", "JSON Value: is not object"),
        ({}, "When method is classify, key 'examples' is expected and was not found"),
        ({"examples": 1}, "Expecting 'examples' value to be an list/array"),
        ({"examples": []}, "'examples' value is an empty array"),
        ({"examples": [1]}, "Example must be JSON object but got JSON Number"),
        ({"examples": [{}], "context": None}, "Example must be JSON object but got JSON Null"),
        ({"examples": [{"x": [1, 0.5]}]}, "Unexpected element type in feature: x expecting type: int64"),
        ({"examples": [{"x": [[1]]}]}, "Feature: x has element with unexpected JSON type: Array"),
        ({"examples": [{"x": {"b64": "!"}}]}, "Unable to base64 decode"),
        ({"examples": [{"x": 1 << 63}]}, "Feature: x has uint64 element. Only int64 is supported."),
        ({"examples": [{"x": 1e39}]}, "Cannot convert JSON value: 1e+39 to float without loss of precision."),
        ({"examples": [{}], "signature_name": "x"}, 'Serving signature name: "x" not found in signature def'),
    ],
)
def test_bad_json_is_refused(rest: Ask, document: Any, text: str) -> None:
    answer = rest("classify", document)
    assert (answer.status, answer.document["error"]) == (400, text)


def test_models_that_do_not_classify_or_regress(rest: Ask, service: Classifier) -> None:
    document: dict[str, Any] = {"examples": [{}, {}]}
    assert "No regression outputs" in rest("regress", document).document["error"]
    service.outputs = {"classes": LABELS[:1], "scores": SCORES}
    answer = rest("classify", document)
    assert answer.document["error"] == "Expected classes output batch size of 2. Got: 1"
    service.outputs = {"classes": LABELS, "scores": SCORES[:, :1]}
    assert "should match in dim_size(1). Got 2 vs. 1" in rest("classify", document).document["error"]
    service.use_outputs(VALUES, outputs=SCORES)
    assert "or [batch_size, 1] but got [2,2]" in rest("regress", document).document["error"]
    assert 'at least one of "classes"' in rest("classify", document).document["error"]
    service.config.input[0].name = "x"
    assert "no input 'inputs' of strings" in rest("regress", document).document["error"]


def test_classes_over_grpc(rpc: Ask, service: Classifier) -> None:
    first, shared = message_class("Example")(), message_class("Example")()
    first.features.feature["x"].int64_list.value.append(1)
    shared.features.feature["y"].float_list.value.append(2)
    given = first.SerializeToString(), b""
    answer = rpc("Classify", "Classification", *given, context=shared.SerializeToString())
    found = [[(each.label, each.score) for each in row.classes] for row in answer.result.classifications]
    assert found == [[("a", 0.25), ("b", 0.75)], [("a", 1), ("b", 0)]]
    assert (answer.model_spec.name, answer.model_spec.version.value) == ("identity", 1)
    assert features(service) == [{"x": [1], "y": [2]}, {"y": [2]}]


def test_values_over_grpc(rpc: Ask, service: Classifier) -> None:
    service.use_outputs(VALUES, outputs=np.array([[0.5], [2]], np.float32))
    answer = rpc("Regress", "Regression", b"", b"")
    assert [each.value for each in answer.result.regressions] == [0.5, 2]
    with pytest.raises(grpc.RpcError) as refused:
        rpc("Regress", "Regression")
    assert refused.value.details() == "Input is empty."


def test_several_tasks_are_one_inference(multi: Ask, service: Classifier) -> None:
    tasks = [("identity", "regress_x", REGRESS), ("identity", "", CLASSIFY)]
    regressed, classified = multi(*tasks).results
    assert [each.value for each in regressed.regression_result.regressions] == [0.5, 2]
    rows = classified.classification_result.classifications
    assert [(each.label, each.score) for each in rows[0].classes] == [("a", 0.25), ("b", 0.75)]
    specs = [
        (each.model_spec.signature_name, each.model_spec.version.value) for each in (regressed, classified)
    ]
    assert specs == [("regress_x", 1), ("serving_default", 1)]
    assert service.wanted == [["outputs", "classes", "scores"]], "asked for once"


@pytest.mark.parametrize(
    ("tasks", "code", "text"),
    [
        ([], "INVALID_ARGUMENT", "ModelSpec has no name specified."),
        ([("", "", REGRESS)], "INVALID_ARGUMENT", "ModelSpec has no name specified."),
        (
            [("identity", "", REGRESS), ("", "", REGRESS)],
            "INVALID_ARGUMENT",
            "Found ModelSpec with an empty model name.",
        ),
        (
            [("identity", "", REGRESS), ("other", "", REGRESS)],
            "INVALID_ARGUMENT",
            "All ModelSpecs in a MultiInferenceRequest must access the same model name.",
        ),
        (
            [("identity", "", REGRESS), ("identity", "serving_default", CLASSIFY)],
            "INVALID_ARGUMENT",
            "Duplicate evaluation of signature: serving_default",
        ),
        (
            [("identity", "x", REGRESS)],
            "INVALID_ARGUMENT",
            "Requested signature not found in model graph: x",
        ),
        (
            [("identity", "", "tensorflow/serving/predict")],
            "UNIMPLEMENTED",
            "Unsupported signature method_name: tensorflow/serving/predict",
        ),
        ([("none", "", REGRESS)], "NOT_FOUND", "Servable not found for request: Latest(none)"),
    ],
)
def test_tasks_that_do_not_fit_are_refused(multi: Ask, tasks: Any, code: str, text: str) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        multi(*tasks)
    assert (refused.value.code().name, refused.value.details()) == (code, text)


def test_tasks_need_examples_and_names_a_list(multi: Ask, service: Classifier) -> None:
    task = ("identity", "", REGRESS)
    with pytest.raises(grpc.RpcError, match=r"Input is empty\."):
        multi(task, examples=0)
    service.config.parameters["signature_names"].string_value = "{}"
    with pytest.raises(grpc.RpcError, match="'signature_names' of 'identity' is no JSON list of strings"):
        multi(task)
