"""The fronts for SageMaker and Vertex AI of the server, asked as the platforms ask."""

import json

import numpy as np
import pytest

from tests.conftest import CLOUD_PORTS, VERTEX_AI_ROUTES
from tests.contract.conftest import Addresses
from tests.unit.app.ingress.clouds.http_calls import ask

VALUES = np.arange(16, dtype=np.int32).reshape(1, 16)
PATHS = {"sagemaker": "/invocations", "vertex-ai": VERTEX_AI_ROUTES["AIP_PREDICT_ROUTE"]}


@pytest.fixture
def port(nereid_server: object, server: Addresses, platform: str) -> int:
    return CLOUD_PORTS[platform]


@pytest.mark.parametrize("platform", PATHS)
def test_binary_and_json_inferences_are_equal(port: int, platform: str) -> None:
    size = {"parameters": {"binary_data_size": VALUES.nbytes}}
    given = [{"name": name, "shape": [1, 16], "datatype": "INT32"} for name in ("INPUT0", "INPUT1")]
    document = json.dumps({"inputs": [{**each, "data": VALUES.ravel().tolist()} for each in given]})
    plain = ask(port, "POST", PATHS[platform], document.encode()).document
    assert plain["model_name"] == "simple"
    assert [output["data"] for output in plain["outputs"]] == [[2 * each for each in range(16)], [0] * 16]
    binary = {"inputs": [{**each, **size} for each in given], "parameters": {"binary_data_output": True}}
    header = json.dumps(binary).encode()
    kind = f"application/vnd.{platform}-triton.binary+json;json-header-size="
    content = {"Content-Type": f"{kind}{len(header)}"}
    answer = ask(port, "POST", PATHS[platform], header + VALUES.tobytes() * 2, content)
    named = answer.content_type.removeprefix(kind) if platform == "sagemaker" else answer.json_length
    length = int(named)
    values = np.frombuffer(answer.body[length:], np.int32)
    assert values.tolist() == [value for output in plain["outputs"] for value in output["data"]]


@pytest.mark.parametrize(
    ("platform", "path"), [("sagemaker", "/ping"), ("vertex-ai", VERTEX_AI_ROUTES["AIP_HEALTH_ROUTE"])]
)
def test_health_is_the_servers(port: int, platform: str, path: str) -> None:
    assert ask(port, "GET", path).status == 200


@pytest.mark.parametrize("platform", ["vertex-ai"])
def test_metadata_and_metrics_are_reached_by_the_header(port: int, platform: str) -> None:
    for target, text in (("v2/models/simple", b'"name":"simple"'), ("metrics", b"nv_inference_count")):
        header = {"X-Vertex-Ai-Triton-Redirect": target}
        answer = ask(port, "POST", PATHS[platform], headers=header)
        assert answer.status == 200 and text in answer.body


@pytest.mark.parametrize("platform", ["sagemaker"])
def test_models_of_the_platform_need_mode_explicit(port: int, platform: str) -> None:
    body = json.dumps({"model_name": "a", "url": "/opt/ml/models/a/model"}).encode()
    answer = ask(port, "POST", "/models", body)
    assert answer.status == 400 and "explicit model load" in answer.document["error"]
    assert ask(port, "GET", "/models").document == {"models": []}
